"""What ``/proc`` tells about a process. A pid is given to others after its end; a pid with its start time is not."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
GONE: Final = frozenset("ZXx")
"""States of a process that has ended and waits to be reaped."""
STANDING_STILL: Final = frozenset("TtD")
"""Stopped by a signal, stopped by a debugger, in uninterruptible sleep."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of this machine, never to be taken for another."""

    pid: int
    start: int
    """Clock ticks from boot until it started."""

    @classmethod
    def current(cls) -> ProcessId:
        """This process."""
        return cls(os.getpid(), _stat(os.getpid()).start)

    @property
    def start_time(self) -> float:
        """Unix time at which it started, in seconds; also of one that has ended."""
        return _boot_time() + self.start / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Vitals:
    """How a living process does."""

    standing_still: bool
    cpu_seconds: float
    resident_bytes: float
    peak_resident_bytes: float | None
    """The most since it began or, of a fork, since it was forked; None where the kernel does not tell."""


@dataclass(frozen=True, slots=True)
class _Stat:
    state: str
    parent: int
    cpu_ticks: int
    start: int
    resident_pages: int


def vitals(process: ProcessId) -> Vitals | None:
    """How ``process`` does; None where it has ended, even if its pid now names another or it is not reaped yet."""
    try:
        peak = _peak_resident_bytes(process.pid)  # first: what is read next says whose it was
        stat = _stat(process.pid)
    except OSError:
        return None
    if stat.start != process.start or stat.state in GONE:
        return None
    resident = float(stat.resident_pages * PAGE_BYTES)
    return Vitals(
        standing_still=stat.state in STANDING_STILL,
        cpu_seconds=stat.cpu_ticks / TICKS_PER_SECOND,
        resident_bytes=resident,
        peak_resident_bytes=None if peak is None else max(peak, resident),
    )


def is_ancestor(process: ProcessId) -> bool:
    """Whether ``process`` is the parent of this one, or a parent's parent, and so on."""
    pid = os.getppid()
    try:
        while pid > 0:
            stat = _stat(pid)
            if ProcessId(pid, stat.start) == process:
                return True
            pid = stat.parent
    except OSError:
        # A parent ended meanwhile, or belongs to someone whose processes this one may not see.
        return False
    return False


def _stat(pid: int) -> _Stat:
    """Parse ``/proc/<pid>/stat``, see proc(5). Raises OSError where there is no such process."""
    line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # The second field is the program's name in parentheses, and may itself hold blanks and parentheses.
    fields = line[line.rindex(")") + 2 :].split()
    return _Stat(
        state=fields[0],
        parent=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start=int(fields[19]),
        resident_pages=int(fields[21]),
    )


def _peak_resident_bytes(pid: int) -> float | None:
    """``VmHWM`` of ``/proc/<pid>/status``. Raises OSError where there is no such process.

    Not ``ru_maxrss``: a program begins with that of the process which started it.
    """
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("VmHWM:"):
            return float(int(line.split()[1]) * 1024)
    return None


@functools.cache
def _boot_time() -> float:
    for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
