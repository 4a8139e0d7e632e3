"""Sidecar processes of an agent: the aggregator of its metrics, and sometimes the store. :class:`Sidecar` runs one of
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.launch.workers.children import Children, kill
from ddp_trainer.launch.workers.worker_group import BOOTSTRAP

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_LAST_WORDS_SECONDS: Final = 1.0
"""Seconds that the agent waits for the exit of a sidecar that it has stopped."""


class Sidecar:
    """Sidecar process ``python -m ddp_trainer COMMAND``, restarted when a signal kills it, until that succeeds.

    It is not restarted after an exit: then its work is done, or it has printed why it cannot work here. Training
    continues without it. It dies with the agent.

    Args:
        children: Starts the process.
        arguments: Command of ``ddp_trainer`` and its arguments.
        environ: Complete environment of the process.
        niceness: Added to the agent's niceness. Workers that start at the same time get the processors first.
    """

    def __init__(
        self, children: Children, arguments: Sequence[str], environ: Mapping[str, str], *, niceness: int = 0
    ) -> None:
        self._children = children
        # -P: the working directory is the user's, and may hold a module of any name.
        target = [sys.executable, "-P", "-m", "ddp_trainer", *arguments]
        self._command = [sys.executable, "-S", str(BOOTSTRAP), str(os.getpid()), "command", *target]
        self._environ = environ
        self._niceness = niceness
        self._pid: int | None = None
        self._pause = _FIRST_PAUSE
        self._is_wanted = True
        self._is_gone = asyncio.Event()
        self._start()

    def stop(self) -> None:
        """Stop the process, and do not restart it."""
        self._is_wanted = False
        if self._pid is not None:
            kill(self._pid, signal.SIGTERM)

    async def stopped(self) -> None:
        """Stop the process, and give it a second for its last output: in a container, it cannot outlive the agent."""
        self.stop()
        await self._gone(_LAST_WORDS_SECONDS)

    async def finished(self, seconds: float) -> None:
        """Request the process to finish its work, wait for its exit, and stop it after ``seconds``."""
        self._is_wanted = False
        if self._pid is not None:
            kill(self._pid, signal.SIGUSR1)
            await self._gone(seconds)
        await self.stopped()

    async def _gone(self, seconds: float) -> None:
        if self._pid is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_gone.wait(), seconds)

    def _start(self) -> None:
        if self._is_wanted:
            self._is_gone.clear()
            self._pid = self._children.start(self._command, self._environ, self._ended)
            if self._niceness:
                with contextlib.suppress(OSError):  # it is gone already, or the system has no priorities of processes
                    os.setpriority(os.PRIO_PROCESS, self._pid, os.getpriority(os.PRIO_PROCESS, 0) + self._niceness)

    def _ended(self, returncode: int) -> None:
        self._pid = None
        self._is_gone.set()
        if self._is_wanted and returncode < 0:
            self._start_later()

    def _start_later(self) -> None:
        asyncio.get_running_loop().call_later(self._pause, self._restart)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _restart(self) -> None:
        try:
            self._start()
        except OSError:  # no process or descriptor is free
            self._start_later()
