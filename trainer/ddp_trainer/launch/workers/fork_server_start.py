"""When the agent starts its zygote: as soon as workers have imported what they need, and not while they do.

Where workers have to start again before that, the zygote starts beside them. Else a job whose workers keep failing
while they import would never have one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ddp_trainer.launch.workers.worker_group import Workers

MOST_LOOKS: Final = 5
"""So many looks wait for what a worker tells of its imports; one without a group tells nothing."""
SOON: Final = 0.1
"""Part of the pause after which workers are looked at that have started again without a zygote."""


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
        self._begins = 0
        """How often all workers have started."""

    def begin(self, *, anew: bool) -> None:
        """Workers have started: all of them ``anew``, or some beside others that go on."""
        if self._workers.can_be_forked and (anew or self._timer is None):
            self.end()
            self._begins += anew
            self._again(self._pause if self._begins < 2 else SOON * self._pause)

    def end(self) -> None:
        """No zygote is wanted any more, or workers will begin again."""
        if self._timer:
            self._timer.cancel()
        self._timer, self._seen = None, 0

    def _again(self, pause: float) -> None:
        self._timer = self._loop.call_later(pause, self._look, pause)

    def _look(self, pause: float) -> None:
        """Start one at the second look that finds torch in the workers, by when they have imported it, or later.

        Where they have started again, at the first.
        """
        if not self._workers.have_torch():
            self._again(2 * pause)
            return
        self._seen += 1
        imports = self._imports()
        if self._begins > 1 or (self._seen > 1 and (imports or self._seen >= MOST_LOOKS)):
            self._workers.prepare_restart(imports)
            self._timer = None
        else:
            self._again(self._pause)
