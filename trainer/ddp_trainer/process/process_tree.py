"""Status and ancestry of processes, from the proc file system. Standard library only."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path
from typing import Final, Literal

PROC: Final = Path("/proc")

_PR_SET_CHILD_SUBREAPER: Final = 36


def set_child_subreaper() -> None:
    """Make this process the parent of its descendants whose parents have ended. Without Linux, do nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children_of(parent: int) -> list[int]:
    """Return the process ids of the children, from the kernel's list if it keeps one."""
    tasks = list((PROC / str(parent) / "task").glob("*/children"))
    with contextlib.suppress(OSError):
        if tasks:
            return [int(pid) for task in tasks for pid in task.read_text().split()]
    return [pid for pid in (int(entry.name) for entry in PROC.glob("[0-9]*")) if parent_of(pid) == parent]


def stat_of(pid: int, proc: Path = PROC) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on, the third one in proc(5).

    Raises:
        OSError: If the process is gone.
    """
    # The second field is the program's name in parentheses, which may contain blanks and parentheses.
    return (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """Return the process id of a process's parent; None if the process has ended.

    Args:
        pid: Process id.
        proc: Mount point of the proc file system.
    """
    try:
        return int(stat_of(pid, proc)[1])
    except (OSError, ValueError, IndexError):
        return None


def is_descendant(pid: int, ancestor: int, proc: Path = PROC) -> bool:
    """Return True if a process is ``ancestor`` or descends from it.

    If ``ancestor`` is a container's first process, this holds for every process of the container and for no other.
    """
    current: int | None = pid
    while current and current != ancestor:
        current = parent_of(current, proc)
    return current == ancestor


def status_of(pid: int | Literal["self"], proc: Path = PROC) -> dict[str, str]:
    """Return the fields of ``/proc/PID/status``; empty if the process is gone."""
    try:
        lines = (proc / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def handles_signal(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    return bool(int(status_of(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)
