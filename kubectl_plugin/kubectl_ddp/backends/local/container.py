"""One run of a container: a process with its descendants and their output.

The process dies with the engine (``PR_SET_PDEATHSIG``) and leads its own session. Its environment contains a mark. When
the container ends, the engine finds the remaining processes by this mark and kills them, as a container runtime does.
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

from kubectl_ddp.backends.local.log_file import LogWriter
from kubectl_ddp.backends.local.process import MARK, kill, members, set_parent_death_signal

NOT_STARTED: Final = 127
"""Exit code of a container whose program cannot be started: the shell's code, which controllers treat as permanent."""

_STUBBORN_SECONDS: Final = 10.0
"""Seconds until a process that survives SIGKILL (uninterruptible sleep) is left to the kernel."""


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """Program to run, with environment and directory."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    directory: str


class StartError(Exception):
    """Raised if the program cannot be started; the message has the form of a container runtime's."""


class Container:
    """A running container. Call :meth:`finish` when the process :attr:`pid` has ended."""

    def __init__(self, mark: str, pid: int, output: int, log: LogWriter) -> None:
        self.mark = mark
        self.pid = pid
        self._output = output
        self._log = log
        self._is_over = False

    @classmethod
    def start(cls, mark: str, command: ContainerCommand, log: LogWriter) -> Container:
        """Start the process.

        Raises:
            StartError: If the program cannot be started.
        """
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
                # Safe here: the engine has one thread, and libc is already loaded.
                preexec_fn=functools.partial(set_parent_death_signal, os.getpid()),  # noqa: PLW1509 - see above
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(reading)
            raise StartError(f'exec: "{command.argv[0]}": {error}') from error
        finally:
            os.close(writing)
        process.returncode = 0  # the engine reaps it by its pid, with all other children
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
        """Send a signal to the first process, as the kubelet does to process 1."""
        if not self._is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL to all processes; :meth:`finish` cleans up the rest."""
        if not self._is_over:
            kill(members(self.mark, self.pid))

    async def finish(self, reaped: Callable[[], asyncio.Future[None]]) -> None:
        """Clean up after the end of the process: kill its remaining descendants and read the rest of the output.

        Args:
            reaped: Returns a future that is done when the next child of the engine has been reaped.
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
    """Return the exit code as a container runtime reports it (128 + n for signal n), and the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return (code, None) if code >= 0 else (128 - code, -code)
