"""End of all processes that a program starts, together with the program, even if that is killed.

:func:`end_with_descendants` splits a process in three: the caller, which waits; a guardian; and its child, in which the
program continues. Caller and guardian adopt orphans (PR_SET_CHILD_SUBREAPER), so a process stays within reach in any
session and group. Whichever of the three ends, one that is left kills all descendants, except those that have
:data:`OUTLIVES` in their environment. Standard library only, because ``bench gpu`` runs where no package is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NoReturn

LIMIT_SECONDS: Final = 10.0
"""Longest wait for killed processes to end: one that waits for a driver cannot."""

OUTLIVES: Final = {"DDP_OUTLIVES_BENCH": "1"}
"""Variable of processes that go on, such as the kubelet of a machine that a test has started again."""

_PAUSE_SECONDS: Final = 0.01
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_KILLED: Final = 128 + signal.SIGKILL


def end_with_descendants() -> None:
    """Continue in a child; the caller waits for it, kills what it leaves, and exits with its exit code.

    The child gets the signals of the terminal. Call it before the first thread is started.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    caller, group = os.getpid(), os.getpgrp()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if guardian := os.fork():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _end(_exit_code_of(guardian))
    os.setpgid(0, 0)  # so that a kill of the caller's group leaves it
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGUSR1)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, lambda *_: _end(_KILLED))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != caller:  # it has died meanwhile
        os._exit(_KILLED)
    if child := os.fork():
        _end(_exit_code_of(child))
    for number, handler in handlers.items():
        signal.signal(number, handler)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgid(0, group)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _exit_code_of(child: int) -> int:
    """Reap children until this one ends."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _end(code: int) -> NoReturn:
    """Kill all children, and those of theirs that become children by that, and exit once there are none."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline and (children := [pid for pid in _children() if not _is_excluded(pid)]):
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        time.sleep(_PAUSE_SECONDS)
    os._exit(code)


def _is_excluded(pid: int) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(f"{name}={value}".encode() in environment for name, value in OUTLIVES.items())


def _children() -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                yield int(stat.parent.name)
