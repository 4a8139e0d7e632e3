"""The start of workers waits for the imports of the fork server only where a worker is missing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddp_trainer.launch.agent.worker_start import Starting
from ddp_trainer.launch.protocol.lifecycle_times import LifecycleTimes


class Zygote:
    """A fork server that still imports."""

    is_importing = is_running = True

    def __init__(self) -> None:
        self.waiting: list[object] = []

    def when_imported(self, call: object) -> None:
        self.waiting.append(call)

    def stop(self) -> None:
        self.is_importing = False


@pytest.mark.parametrize(("alive", "starts_at_once"), [([0, 1], True), ([0], False), ([], False)])
def test_survivors_get_their_place_at_once(alive: list[int], starts_at_once: bool) -> None:
    fork_server, started = Zygote(), list[str]()
    starting = object.__new__(Starting)
    starting.workers = cast("Any", SimpleNamespace(zygote=fork_server, alive=alive))
    starting.setup = cast("Any", SimpleNamespace(launch=SimpleNamespace(local_world_size=2)))
    starting.moments = LifecycleTimes()

    async def begin() -> None:
        starting._after_imports(lambda: started.append("started"))

    asyncio.run(begin())
    assert (started == ["started"], len(fork_server.waiting)) == (starts_at_once, 1 - starts_at_once)
