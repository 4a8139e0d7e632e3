"""Peak bytes of all live tensors, exactly, as torch's allocator reports them to its profiler.

The size of the process is less exact: it contains code, pools and memory that C's allocator has not returned.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

_CPU = 0


class PeakMemoryProfiler:
    """Tensors from now on."""

    def __init__(self) -> None:
        gc.collect()  # blocks that compute again end in cycles: what is freed later would count as never taken
        self._profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profiler.__enter__()

    def peak(self) -> int:
        """Until now, the most that tensors took beside those that were there before; the end of watching."""
        self._profiler.__exit__(None, None, None)
        live = most = 0
        for _, size in sorted(_changes(self._profiler), key=lambda change: change[0]):
            live += size
            most = max(most, live)
        return most


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that tensors took while ``work`` ran; those that were there before do not count."""
    watched = PeakMemoryProfiler()
    work()
    return watched.peak()


def _changes(profiler: profile) -> Iterator[tuple[float, int]]:
    """Yield time and change of each event: positive for an allocation, negative for a release."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        events: list[Mapping[str, Any]] = json.loads(Path(file.name).read_text(encoding="utf-8"))["traceEvents"]
    for event in events:
        if event["name"] == "[memory]" and event["args"]["Device Type"] == _CPU:
            yield float(event["ts"]), int(event["args"]["Bytes"])
