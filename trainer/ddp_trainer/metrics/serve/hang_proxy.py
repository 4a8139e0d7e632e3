"""Proxy on the metrics port for the launcher's outline of its ranks, which contains no stacks.

:class:`HangProxy` reads the outline from the launcher's socket in the metrics directory.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.serve.server import Response, error_response
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.socket_address import short_address

ANSWER_SECONDS: Final = 4.5
"""Timeout in seconds, slightly shorter than that of a connection."""
MOST_BYTES: Final = 1 << 22


class HangProxy:
    """Relay that has at most one request to the launcher open, shared by all clients.

    The launcher limits how often it inspects its ranks.
    """

    def __init__(self, directory: Path) -> None:
        """Create the relay.

        Args:
            directory: Directory of the launcher's socket.
        """
        self._directory = directory
        self._asking: asyncio.Task[Response] | None = None

    async def fetch_response(self) -> Response:
        """Return the launcher's outline, or the reason why there is none."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(hang(self._directory))
        return await asyncio.shield(self._asking)  # a client that disconnects must not cancel it for others


async def hang(directory: Path) -> Response:
    """Return the response of the launcher's socket in ``directory``, or the reason why there is none."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            body = await _all_of(directory)
    except TimeoutError:
        return error_response(HTTPStatus.GATEWAY_TIMEOUT, "The launcher does not answer: is it stopped?")
    except OSError as error:
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"No launcher shows its ranks here: {error.strerror}.")
    if not body:
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "The launcher is about to end, and shows no ranks.")
    return Response(body, content_type="application/json")


async def _all_of(directory: Path) -> bytes:
    with short_address(directory / heartbeat_page.LAUNCHER) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(heartbeat_page.OUTLINE)
        said = b""
        while len(said) < MOST_BYTES and (part := await reader.read(1 << 16)):
            said += part
        return said
    finally:
        writer.close()
