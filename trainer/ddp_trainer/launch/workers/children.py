"""Child processes of an agent, and everybody else's: an agent is often process 1 of its container.

One handler of SIGCHLD reaps whatever has ended. As the reaper of its descendants (PR_SET_CHILD_SUBREAPER) the agent
also gets the orphans of its workers, which nobody else in a container would ever wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_PR_SET_CHILD_SUBREAPER: Final = 36


class Children:
    """Starts processes and tells their owners when they end. Belongs to the main thread and its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._owners: dict[int, Callable[[int], None]] = {}
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ended: Callable[[int], None],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> int:
        """Start a process in a session of its own and return its id; ``ended`` gets its return code.

        A session of its own keeps a terminal's Ctrl-C from it, which the agent forwards in its own time, and makes
        it the head of a process group that can be killed whole. Raises OSError.
        """
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._started[process.pid] = process
        self.adopt(process.pid, ended)
        return process.pid

    def adopt(self, pid: int, ended: Callable[[int], None]) -> None:
        """Tell ``ended`` when this descendant ends."""
        self._owners[pid] = ended

    def kill_strays(self) -> None:
        """Kill what workers left behind and no group of ours holds: a daemon that forked twice has become our child,
        and may keep a GPU or a port that the next workers need.
        """
        strays = [pid for pid in _children_of(os.getpid()) if pid not in self._owners]
        while strays:
            pid = strays.pop()
            strays += _children_of(pid)
            kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for everything that has ended. One SIGCHLD may stand for many."""
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
                # While it is a zombie its group id cannot be taken by another, so this hits only what it left behind:
                # loader processes of a dead rank hold its memory. What a program leaves when it ends well, it meant.
                kill_group(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            returncode = os.waitstatus_to_exitcode(status)
            if process := self._started.pop(pid, None):
                process.returncode = returncode
            if owner:
                owner(returncode)


def _children_of(parent: int) -> list[int]:
    """Process ids; by the kernel's own list where it keeps one."""
    tasks = list(Path(f"/proc/{parent}/task").glob("*/children"))
    with contextlib.suppress(OSError):
        if tasks:
            return [int(pid) for task in tasks for pid in task.read_text().split()]
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent_in(stat) == parent]


def _parent_in(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):  # it ended meanwhile
        return 0


def kill(pid: int, which: signal.Signals) -> None:
    """Send a signal to one process, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def kill_group(pid: int, which: signal.Signals) -> None:
    """Send a signal to the whole group of a process, if any of it is still there."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, which)
