"""Restart of a process beside the agent."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from ddp_trainer.launch.workers import sidecar
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.sidecar import Sidecar


class Processes:
    """Children that keep the handlers of exits, and whose second start fails."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[Callable[[int], None]] = asyncio.Queue()
        self._starts = 0

    def start(self, _: Sequence[str], __: Mapping[str, str], ended: Callable[[int], None]) -> int:
        self._starts += 1
        if self._starts == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        self.started.put_nowait(ended)
        return self._starts


async def test_a_sidecar_that_cannot_start_again_is_tried_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "_FIRST_PAUSE", 0.0)

    processes = Processes()
    Sidecar(cast("Children", processes), ["aggregate"], {})
    (await processes.started.get())(-9)
    async with asyncio.timeout(10):
        await processes.started.get()
