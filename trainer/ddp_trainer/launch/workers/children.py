"""Child processes of an agent and orphans of its container. The agent is often process 1 of the container.

:class:`Children` starts processes, calls their owners when they end, and kills orphans. One SIGCHLD handler reaps every
process that has ended. The agent is the reaper of its descendants (PR_SET_CHILD_SUBREAPER), so it also gets the orphans
of its workers. No other process of a container would reap them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from ddp_trainer.process.process_tree import children_of, set_child_subreaper


class Children:
    """Child processes of this launcher, with a callback for the end of each. Belongs to the main thread and its event
    loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owners: dict[int, Callable[[int], None]] = {}
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        set_child_subreaper()
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ended: Callable[[int], None],
        *,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> int:
        """Start a process in a new session and return its process id.

        The new session keeps a terminal's Ctrl-C from the process; the agent forwards it at its own time. The process
        also becomes the leader of a process group that can be killed as a whole.

        Args:
            command: Program and arguments.
            environment: Complete environment of the process.
            ended: Called with the return code, negative for a signal.
            stdout: Descriptor or file of its stdout; None to inherit it.
            stderr: Descriptor or file of its stderr; None to inherit it.
            pass_fds: Descriptors that the process inherits.

        Raises:
            OSError: The process cannot be started.
        """
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._started[process.pid] = process
        self.add_child_handler(process.pid, ended)
        return process.pid

    def add_child_handler(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call ``ended`` with the return code when this descendant ends."""
        self._owners[pid] = ended

    def kill_orphans(self) -> None:
        """Kill processes that workers left behind outside the groups of this launcher. A daemon that forked twice has
        become a child of the agent. It may hold a GPU or a port that the next workers need.
        """
        strays = [pid for pid in children_of(os.getpid()) if pid not in self._owners]
        while strays:
            pid = strays.pop()
            strays += children_of(pid)
            kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Reap every process that has ended, since one SIGCHLD may stand for many."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            owner = self._owners.pop(pid, None)
            if owner and (ended.si_code, ended.si_status) != (os.CLD_EXITED, 0):
                # The group id of a zombie cannot be reused, so this kills only what the process left behind: loader
                # processes of a dead rank hold its memory. A program that exits with 0 may leave processes on purpose.
                kill_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            returncode = os.waitstatus_to_exitcode(status)
            if process := self._started.pop(pid, None):
                process.returncode = returncode
            if owner:
                owner(returncode)


def kill(pid: int, which: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def kill_group(pid: int, which: signal.Signals) -> None:
    """Send a signal to the whole process group of a process, if any member still exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, which)
