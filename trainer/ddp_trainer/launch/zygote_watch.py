"""When the agent starts its zygote: as soon as workers have imported what they need, and not while they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ddp_trainer.launch.workers import Workers

MOST_LOOKS: Final = 5
"""So many looks wait for what a worker tells of its imports; one without a group tells nothing."""


class ZygoteWatch:
    """Looks at the workers now and then. Survivors of a group have torch already, and so the watch goes on over it."""

    def __init__(self, workers: Workers, pause: float, imports: Callable[[], Path | None]) -> None:
        """``pause`` in seconds between two looks; ``imports`` see :meth:`HangGuard.imports`."""
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._pause = pause
        self._imports = imports
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0

    def begin(self, *, anew: bool) -> None:
        """Workers have started: all of them ``anew``, or some beside others that go on."""
        if self._workers.can_be_forked and (anew or self._timer is None):
            self.end()
            self._again(self._pause)

    def end(self) -> None:
        """No zygote is wanted any more, or workers will begin again."""
        if self._timer:
            self._timer.cancel()
        self._timer, self._seen = None, 0

    def _again(self, pause: float) -> None:
        self._timer = self._loop.call_later(pause, self._look, pause)

    def _look(self, pause: float) -> None:
        """Start one at the second look that finds torch in the workers, by when they have imported it, or later."""
        if not self._workers.have_torch():
            self._again(2 * pause)
            return
        self._seen += 1
        imports = self._imports()
        if self._seen > 1 and (imports or self._seen >= MOST_LOOKS):
            self._workers.prepare_restart(imports)
            self._timer = None
        else:
            self._again(self._pause)
