"""Samples of a pod: its GPUs by NVML, and its restarts and kills from files of the kernel.

:class:`GpuSampler` runs on a thread of the aggregator. A reading costs no training step, and a rank that hangs keeps
its readings. A call into a faulty driver may never return. The readings then age and are left out.

The plain sum over all metrics files falls when a metrics file is replaced, is unreadable for a while, or changes its
rank. Prometheus takes a falling counter for a restarted one, and would count an hour of growth in one moment.
:class:`PodCounters` therefore adds up growth. The values at the start of the exporter count as 0, so a restarted
exporter begins at 0.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.metric_names import MetricLabel, cell
from ddp_trainer.metrics.families.pod_families import FAMILIES, SUMMED, of_pod
from ddp_trainer.metrics.families.rank_families import THROTTLED
from ddp_trainer.metrics.storage.mmap_directory import Slot, read_pod_snapshot
from ddp_trainer.process.gpu_devices import CLOCK_EVENTS, LIBRARY, clock_events, load_nvml

READ_EVERY_SECONDS: Final = 5.0
FRESH_SECONDS: Final = 15.0
"""Age in seconds beyond which a reading is left out."""

Reader = Callable[[Any, Any], float]
"""Called with the module ``pynvml`` and the handle of a GPU."""


@dataclass(slots=True)
class GpuSampler:
    """Newest readings of the GPUs that the metrics files of one directory name."""

    directory: Path
    library: str = LIBRARY
    clock: Callable[[], float] = time.monotonic
    _nvml: Any = None
    _readings: dict[str, tuple[float, dict[str, float]]] = field(default_factory=dict)
    """GPU UUID → time of the reading, and the series."""

    def start(self) -> None:
        """Read repeatedly on a daemon thread. The thread ends if library or package are missing."""
        threading.Thread(target=self._read_loop, name="gpu-readings", daemon=True).start()

    def read(self) -> None:
        """Read each GPU once. The library is loaded when a metrics file names the first GPU.

        Raises:
            OSError: The library is missing.
            ImportError: nvidia-ml-py is not installed.
        """
        uuids = {uuid for slot in read_pod_snapshot(self.directory).ranks if (uuid := _uuid(slot))}
        if not uuids:
            return
        if self._nvml is None:
            nvml = load_nvml(self.library)
            try:
                nvml.nvmlInit()
            except nvml.NVMLError:
                return  # until the next time
            self._nvml = nvml
        for uuid in uuids:
            with contextlib.suppress(self._nvml.NVMLError):
                device = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
                self._readings[uuid] = (self.clock(), _series(self._nvml, device))

    def values(self, slot: Slot) -> Mapping[str, float]:
        """Return the series of a rank's GPU; empty without a GPU or if the reading is older than
        :data:`FRESH_SECONDS`.
        """
        read_at, series = self._readings.get(_uuid(slot), (float("-inf"), {}))
        return series if self.clock() - read_at <= FRESH_SECONDS else {}

    def _read_loop(self) -> None:
        with contextlib.suppress(OSError, ImportError):
            while True:
                self.read()
                time.sleep(READ_EVERY_SECONDS)


def _uuid(slot: Slot) -> str:
    return str(slot.file.identity.get(MetricLabel.GPU_UUID, ""))


def _series(nvml: Any, device: Any) -> dict[str, float]:
    """Return all readable series. A field that fails does not affect the others."""
    series: dict[str, float] = {}
    for name, read in _READERS.items():
        with contextlib.suppress(nvml.NVMLError):
            series[name] = read(nvml, device)
    with contextlib.suppress(nvml.NVMLError):
        events = clock_events(nvml, device)
        series |= {cell(THROTTLED, reason): float(reason in events) for reason in CLOCK_EVENTS.values()}
    return series


_READERS: Final[Mapping[str, Reader]] = {
    "ddp_gpu_memory_used_bytes": lambda nvml, device: float(nvml.nvmlDeviceGetMemoryInfo(device).used),
    "ddp_gpu_utilization_ratio": lambda nvml, device: nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100,
    "ddp_gpu_sm_clock_hertz": lambda nvml, device: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) * 1e6,
    "ddp_gpu_sm_clock_max_hertz": lambda nvml, device: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM) * 1e6,
}


SUMS: Final = {
    own.key: pod.key
    for family in FAMILIES
    if family.name in SUMMED
    for own, pod in zip(family.series(), of_pod(family).series(), strict=True)
}
"""Key of a rank's series → key of the pod's series."""


class PodCounters:
    """Counters of a pod that grow with those of its ranks."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(SUMS.values(), 0.0)
        self._seen: dict[int, dict[str, float]] | None = None
        """Local rank → last values of its metrics file; None before the first reading."""

    def values(self, slots: Iterable[Slot]) -> dict[str, float]:
        """Return the sums after reading these metrics files, by key of the series."""
        is_first, seen = self._seen is None, self._seen or {}
        for slot in slots:
            values = {own: slot.file.values[own] for own in SUMS}
            before = seen.get(slot.local_rank, values if is_first else {})
            for own, pod in SUMS.items():
                self._sums[pod] += counter_increase(before.get(own, 0.0), values[own])
            seen[slot.local_rank] = values
        self._seen = seen
        return dict(self._sums)


def counter_increase(before: float, now: float) -> float:
    """Return the growth of a counter. A counter that fell has restarted from 0.

    >>> counter_increase(2.0, 5.0), counter_increase(5.0, 2.0)
    (3.0, 2.0)
    """
    return now - before if now >= before else now
