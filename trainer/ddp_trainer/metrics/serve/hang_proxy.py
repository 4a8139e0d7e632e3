"""Passes on the launcher's outline of its ranks, which has no stacks, at the metrics port."""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.serve.server import Answer, refusal
from ddp_trainer.process import heartbeat_page

ANSWER_SECONDS: Final = 4.5
"""A little less than a connection has in all."""
MOST_BYTES: Final = 1 << 22


class HangRelay:
    """Asks the launcher once at a time, however many clients there are; the launcher bounds how often it looks."""

    def __init__(self, directory: Path) -> None:
        """``directory`` holds the launcher's socket."""
        self._directory = directory
        self._asking: asyncio.Task[Answer] | None = None

    async def answer(self) -> Answer:
        """Return the launcher's outline, or why there is none."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(hang(self._directory))
        return await asyncio.shield(self._asking)  # a client that leaves ends it for no other


async def hang(directory: Path) -> Answer:
    """What the launcher says at its socket in ``directory``, or why nobody does."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            body = await _all_of(directory)
    except TimeoutError:
        return refusal(HTTPStatus.GATEWAY_TIMEOUT, "The launcher does not answer: is it stopped?")
    except OSError as error:
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"No launcher shows its ranks here: {error.strerror}.")
    if not body:
        return refusal(HTTPStatus.SERVICE_UNAVAILABLE, "The launcher is about to end, and shows no ranks.")
    return Answer(body, content_type="application/json")


async def _all_of(directory: Path) -> bytes:
    folder = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        # The address of a socket has 107 bytes, and a path may have more.
        reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{heartbeat_page.LAUNCHER}")
    finally:
        os.close(folder)
    try:
        writer.write(heartbeat_page.OUTLINE)
        said = b""
        while len(said) < MOST_BYTES and (part := await reader.read(1 << 16)):
            said += part
        return said
    finally:
        writer.close()
