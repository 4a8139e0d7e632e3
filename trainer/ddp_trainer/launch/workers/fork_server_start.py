"""Start time of the agent's fork server: after workers have imported what they need, and not while they import.

:class:`ZygoteWatch` looks at the workers and starts the fork server, or has a running one import what they have
imported. If workers restart before that, the fork server starts beside them. Otherwise a job whose workers keep failing
during imports would never get one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ddp_trainer.launch.workers.worker_group import Workers

MOST_LOOKS: Final = 5
"""Number of looks that wait for a worker's list of imports. A worker without a process group writes none."""
SOON: Final = 0.1
"""Fraction of the pause before the first look at workers that have restarted without a fork server."""


class ZygoteWatch:
    """Periodic look at the workers. Surviving workers already have torch, so it continues when the group re-forms."""

    def __init__(
        self, workers: Workers, pause: float, imports: Callable[[], Path | None], learnt: Callable[[Path], None]
    ) -> None:
        """Initialize the watch.

        Args:
            workers: Workers to look at.
            pause: Seconds between two looks.
            imports: See :meth:`HangGuard.imports`.
            learnt: Called with this file when workers have written it.
        """
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._pause = pause
        self._imports = imports
        self._learnt = learnt
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0
        self._begins = 0
        """Number of times that all workers have started."""

    def begin(self, *, anew: bool) -> None:
        """Start the watch after a start of workers: of all of them if ``anew``, else of some beside surviving ones."""
        if self._workers.supports_fork_server and (anew or self._timer is None):
            self.end()
            self._begins += anew
            self._reschedule(self._pause if self._begins < 2 else SOON * self._pause)

    def end(self) -> None:
        """Stop the watch: no fork server is needed, or workers are about to start."""
        if self._timer:
            self._timer.cancel()
        self._timer, self._seen = None, 0

    def _reschedule(self, pause: float) -> None:
        self._timer = self._loop.call_later(pause, self._poll, pause)

    def _poll(self, pause: float) -> None:
        """Start the fork server when workers have written their list of imports, or after some looks without one.

        A list at the first look may be one of earlier workers. After a restart of the workers, the first look that
        finds torch starts the fork server.
        """
        if not self._workers.have_torch():
            self._reschedule(2 * pause)
            return
        self._seen += 1
        imports = self._imports()
        if imports and (self._seen > 1 or self._begins > 1):
            self._timer = None
            self._workers.prepare_restart(imports)
            self._learnt(imports)
            return
        if self._begins > 1 or self._seen >= MOST_LOOKS:
            self._workers.prepare_restart(None)
        self._reschedule(self._pause if self._seen < MOST_LOOKS else 2 * pause)
