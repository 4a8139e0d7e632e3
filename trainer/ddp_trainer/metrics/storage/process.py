"""Identity and state of a process, from ``/proc``.

A pid is reused after the process ends; a pid with its start time is unique.
"""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass
from typing import Final

from ddp_trainer.process.process_tree import is_descendant, stat_of, status_of

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
ENDED_STATES: Final = frozenset("ZXx")
"""States of a process that has ended: zombie or dead."""
STANDING_STILL: Final = frozenset("TtD")
"""Stopped by a signal, stopped by a debugger, in uninterruptible sleep."""
_START: Final = 19
"""Place of the start time in :func:`~ddp_trainer.process.process_tree.stat_of`."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Unique identity of one process of this machine."""

    pid: int
    start: int
    """Start time, in clock ticks since boot."""

    @classmethod
    def current(cls) -> ProcessId:
        """Return the identity of this process."""
        return cls(os.getpid(), _start_of(os.getpid()))

    @property
    def start_time(self) -> float:
        """Unix time at which the process started, in seconds; also for a process that has ended."""
        return _boot_time() + self.start / TICKS_PER_SECOND


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """State and resource use of a living process."""

    standing_still: bool
    cpu_seconds: float
    resident_bytes: float
    peak_resident_bytes: float | None
    """Peak since the process began or was forked, in bytes; None if the kernel does not report it."""


def read_process_stats(process: ProcessId) -> ProcessStats | None:
    """Return the state of ``process``; None if it has ended, even if its pid is in use again or it is not reaped
    yet.
    """
    try:
        peak = _peak_resident_bytes(process.pid)  # first: the start time read next proves whose peak it is
        stat = stat_of(process.pid)
    except OSError:
        return None
    if int(stat[_START]) != process.start or stat[0] in ENDED_STATES:
        return None
    resident = float(int(stat[21]) * PAGE_BYTES)
    return ProcessStats(
        standing_still=stat[0] in STANDING_STILL,
        cpu_seconds=(int(stat[11]) + int(stat[12])) / TICKS_PER_SECOND,
        resident_bytes=resident,
        peak_resident_bytes=None if peak is None else max(peak, resident),
    )


def is_ancestor(process: ProcessId) -> bool:
    """Return True if ``process`` is the parent of this process or a further ancestor."""
    try:
        return _start_of(process.pid) == process.start and is_descendant(os.getppid(), process.pid)
    except OSError:
        return False


def _start_of(pid: int) -> int:
    return int(stat_of(pid)[_START])


def _peak_resident_bytes(pid: int) -> float | None:
    """Return ``VmHWM`` of ``/proc/<pid>/status`` in bytes; None if there is none.

    ``ru_maxrss`` is unsuitable: a program inherits the value of the process that started it.
    """
    peak = status_of(pid).get("VmHWM")
    return None if peak is None else float(int(peak.split()[0]) * 1024)


@functools.cache
def _boot_time() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
