"""Collector of all metrics of a pod, with memory and processor time of its container."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from ddp_trainer.common import constants
from ddp_trainer.common.metric_names import Metric, MetricLabel, cell
from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.collect.collectives import Collectives
from ddp_trainer.metrics.collect.pod_sampler import GpuSampler, PodCounters
from ddp_trainer.metrics.families.family import Family, Kind, Scope, Source
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.storage.mmap_directory import PodSnapshot, Slot, rank_metrics_path, read_pod_snapshot
from ddp_trainer.metrics.storage.user_values import read_user_values, user_values_path

UNLIMITED: Final = 1 << 60
"""Limits from here on mean "no limit": cgroups version 1 reports the largest multiple of a page that it can hold."""


SHARED_MEMORY: Final = Path(constants.Path.SHARED_MEMORY)
CGROUP: Final = Path("/sys/fs/cgroup")


def limits(shared_memory: Path = SHARED_MEMORY, cgroup: Path = CGROUP) -> dict[str, float]:
    """Return the values by metric name; a value that cannot be read is left out."""
    values: dict[str, float] = {}
    with contextlib.suppress(OSError):
        room = os.statvfs(shared_memory)
        values["ddp_shm_size_bytes"] = float(room.f_blocks * room.f_frsize)
        values["ddp_shm_used_bytes"] = float((room.f_blocks - room.f_bfree) * room.f_frsize)
    if (limit := memory_limit(cgroup)) is not None:
        values["ddp_container_memory_limit_bytes"] = limit
    return values


def memory_limit(cgroup: Path = CGROUP) -> float | None:
    """Return the memory limit in bytes; None if there is none or it cannot be read."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        return float(text) if text.isdecimal() and int(text) < UNLIMITED else None
    return None


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Source of numbers for an exposition: a rank, the launcher, or the aggregator itself."""

    scopes: frozenset[Scope]
    """Scopes of the families that it exports."""
    values: Mapping[str, float]
    """Series key → value; a series without an entry is not exported."""
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Name of an info family → its labels."""
    rank: str = ""
    own: Mapping[str, float] = field(default_factory=dict)
    """Values of the script, by the names that it has given them."""

    def add_samples(self, family: Family, job: str, exposed: Exposed) -> None:
        """Add its samples of ``family`` to ``exposed``."""
        if family.scope not in self.scopes:
            return
        common = {MetricLabel.JOB.value: job}
        if family.scope is Scope.RANK:
            common[MetricLabel.RANK.value] = self.rank
        if family.name in self.words:
            exposed.add_sample(family.name, common | dict(self.words[family.name]), 1.0)
        for name, value in self.own.items() if family.source is Source.SCRIPT else ():
            exposed.add_sample(family.name, common | {MetricLabel.NAME.value: name}, value)
        for series in family.series():
            if series.key in self.values:
                exposed.add_sample(series.sample, common | series.labels, self.values[series.key])


class Exposition(Collector):
    """Collector that reads the metrics files of a directory at every collection."""

    def __init__(
        self,
        directory: Path,
        job: str,
        cgroup: Path = CGROUP,
        collectives: Collectives | None = None,
        gpus: GpuSampler | None = None,
    ) -> None:
        """Create the collector.

        Args:
            directory: Directory of the metrics files.
            job: Value of the label ``ddp_job``.
            cgroup: Control group to read the memory limit from (the one of this container).
            collectives: Source of collective numbers (the heartbeat pages in ``directory``).
            gpus: Source of GPU readings (the GPUs named by the metrics files in ``directory``).
        """
        self._directory = directory
        self._gpus = gpus or GpuSampler(directory)
        self._collectives = collectives or Collectives(directory)
        self._cgroup = cgroup
        self._sums = PodCounters()
        self._job = job
        self._version = importlib.metadata.version("kubectl-ddp")
        self._scrapes = 0
        self._seconds = 0.0

    def collect(self) -> Iterator[Exposed]:
        """Yield every family that has a sample, in the order of the catalogue."""
        begun = time.perf_counter()
        seen = read_pod_snapshot(self._directory)
        speakers = [*map(self._rank, seen.ranks), *map(_agent, filter(None, [seen.agent])), self._self(seen)]
        for family in FAMILIES:
            exposed = _empty(family)
            for speaker in speakers:
                speaker.add_samples(family, self._job, exposed)
            if exposed.samples:
                yield exposed
        self._scrapes += 1
        self._seconds += time.perf_counter() - begun

    def _rank(self, slot: Slot) -> MetricSource:
        scopes = {Scope.RANK}
        if slot.rank == 0:
            scopes.add(Scope.JOB)
        if slot.local_rank == 0:
            scopes.add(Scope.POD)
        return MetricSource(
            scopes=frozenset(scopes),
            values={
                **_cumulative(slot.file.values),
                **_process(slot),
                **self._collectives.values(slot.local_rank),
                **self._gpus.values(slot),
            },
            words={
                family.name: words for family, known_by in _INFOS if (words := _slot_labels(slot, family))[known_by]
            },
            rank=str(slot.rank),
            own=read_user_values(user_values_path(rank_metrics_path(self._directory, slot.local_rank))),
        )

    def _self(self, seen: PodSnapshot) -> MetricSource:
        return MetricSource(
            scopes=frozenset({Scope.POD}),
            values={
                "ddp_exporter_scrapes_total": float(self._scrapes),
                "ddp_exporter_scrape_seconds_total": self._seconds,
                "ddp_exporter_stale_boards": float(len(seen.stale)),
                **self._sums.values(seen.ranks),
                **limits(cgroup=self._cgroup),
            },
            words={"ddp_build_info": {MetricLabel.VERSION: self._version}},
        )


def _empty(family: Family) -> Exposed:
    """Return a family without samples. prometheus_client expects the name without the suffix of its type."""
    stem = family.name.removesuffix("_total").removesuffix("_info")
    return Exposed(stem, family.help, family.kind.value, family.unit)


def _slot_labels(slot: Slot, family: Family) -> dict[str, str]:
    return {str(label): str(slot.file.identity.get(label, "")) for label in family.labels}


def _cumulative(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values of a metrics file with cumulative histogram buckets.

    There is one histogram, of step durations. Its sum is the sum of the phases, so none is stored.
    """
    cumulative = dict(values)
    for family in _HISTOGRAMS:
        count = 0.0
        for series in family.series():
            if "le" in series.labels:
                count += values[series.key]
                cumulative[series.key] = count
        cumulative[f"{family.name}_count"] = count
        cumulative[f"{family.name}_sum"] = sum(values[cell(Metric.PHASE_SECONDS, phase)] for phase in Phase)
    return cumulative


def _process(slot: Slot) -> dict[str, float]:
    owner = slot.file.owner
    identity = {Metric.RANK_PID: float(owner.pid), "ddp_rank_start_time_seconds": owner.start_time}
    if slot.vitals is None:
        return identity | {Metric.RANK_UP: 0.0, "ddp_rank_stopped": 0.0}
    peak = slot.vitals.peak_resident_bytes
    return identity | {
        Metric.RANK_UP: 1.0,
        "ddp_rank_stopped": float(slot.vitals.standing_still),
        "ddp_rank_cpu_seconds_total": slot.vitals.cpu_seconds,
        "ddp_rank_resident_memory_bytes": slot.vitals.resident_bytes,
        **({} if peak is None else {"ddp_rank_resident_memory_peak_bytes": peak}),
    }


def _agent(slot: Slot) -> MetricSource:
    up = {"ddp_agent_up": float(slot.vitals is not None)}
    return MetricSource(scopes=frozenset({Scope.POD}), values=slot.file.values | up)


_HISTOGRAMS = [family for family in FAMILIES if family.kind is Kind.HISTOGRAM]
_INFOS = [
    (family, known_by)
    for family in FAMILIES
    for name, known_by in ((Metric.RANK_INFO, MetricLabel.DEVICE), (Metric.JOB_INFO, MetricLabel.PARALLELISM))
    if family.name == name
]
"""Each info family with the label that is set last. Until then the family is left out, since a series with empty labels
would appear and vanish.
"""
