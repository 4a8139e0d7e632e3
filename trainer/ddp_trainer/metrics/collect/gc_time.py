"""Time that Python's garbage collector takes in this process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

_watching: Final[list[GcTimer]] = []


class GcTimer:
    """Callback that reports the duration of each garbage collection.

    Collections are a known cause of stragglers, since each rank collects at a different time.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._began: float | None = None

    def __call__(self, phase: str, _: Mapping[str, int]) -> None:
        """Handle one event of :data:`gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self._report(time.perf_counter() - self._began)
            self._began = None


def watch(report: Callable[[float], None]) -> None:
    """Call ``report`` with the seconds of each collection from now on. It replaces the previous callback."""
    for before in _watching:
        if before in gc.callbacks:
            gc.callbacks.remove(before)
    _watching[:] = [GcTimer(report)]
    gc.callbacks.extend(_watching)
