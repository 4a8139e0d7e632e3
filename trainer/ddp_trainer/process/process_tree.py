"""Ancestry of processes, from the proc file system. Standard library only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")


def parent_of(pid: int, proc: Path = PROC) -> int | None:
    """Return the process id of a process's parent; None if the process has ended.

    Args:
        pid: Process id.
        proc: Mount point of the proc file system.
    """
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None
