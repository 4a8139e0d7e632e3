"""One run of a container: a process, everything it starts, and what comes out of it.

The process dies with the engine (``PR_SET_PDEATHSIG``), leads a session of its own and carries a mark in its
environment, by which what it leaves behind is found and killed when it ends, as a container's end kills all in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.local.log_file import LogWriter
from kubectl_ddp.local.prctl import set_parent_death_signal
from kubectl_ddp.local.process import MARK, kill, members

NOT_STARTED: Final = 127
"""Exit code of a container whose program cannot be started: a shell's, and permanent for every controller."""

_STUBBORN_SECONDS: Final = 10.0
"""After which a process that SIGKILL did not end (uninterruptible sleep) is left to the kernel."""


@dataclass(frozen=True, slots=True)
class Command:
    """What to run."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str


class StartError(Exception):
    """The program cannot be started; the message says why, in the words of a container runtime."""


class Container:
    """A running container. :meth:`exited` is to be called with the wait status of :attr:`pid`."""

    def __init__(self, mark: str, pid: int, output: int, log: LogWriter) -> None:
        self.mark = mark
        self.pid = pid
        self._output = output
        self._log = log
        self._is_over = False

    @classmethod
    def start(cls, mark: str, command: Command, log: LogWriter) -> Container:
        """Start the process. Raises StartError."""
        environment = {**command.environment, MARK: mark}
        program = shutil.which(command.argv[0], path=environment.get("PATH"))
        if program is None:
            raise StartError(f'exec: "{command.argv[0]}": executable file not found in $PATH')
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                list(command.argv),
                executable=program,
                env=environment,
                cwd=command.directory,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                # Safe here: the engine has one thread, and libc is loaded already.
                preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),  # noqa: PLW1509 - see above
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reading)
            raise StartError(f'exec: "{command.argv[0]}": {error}') from error
        finally:
            os.close(writing)
        process.returncode = 0  # the engine reaps it by its number, with all other children
        container = cls(mark, process.pid, reading, log)
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, container._drain)
        return container

    def _drain(self) -> None:
        try:
            while data := os.read(self._output, 1 << 16):
                self._log.feed(data)
        except BlockingIOError:
            return
        asyncio.get_running_loop().remove_reader(self._output)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started, as the kubelet does to process 1."""
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of it; what it leaves is cleared away by :meth:`finish`."""
        if not self._is_over:
            kill(members(self.mark, self.pid))

    async def finish(self, reaped: Callable[[], asyncio.Future[None]]) -> None:
        """Its process has ended: kill what it left, and read what is still in the pipe.

        Args:
            reaped: gives a future that is done when the next child of the engine was reaped.
        """
        self._is_over = True
        loop = asyncio.get_running_loop()
        patience = loop.time() + _STUBBORN_SECONDS
        while (left := members(self.mark, self.pid)) and loop.time() < patience:
            next_one = reaped()
            kill(left)
            await asyncio.wait([next_one], timeout=0.05)
        self._drain()
        loop.remove_reader(self._output)
        os.close(self._output)
        self._log.finish()


def exit_of(wait_status: int) -> tuple[int, int | None]:
    """Exit code as a container runtime gives it (128 + n for signal n), and the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (code, None) if code >= 0 else (128 - code, -code)
