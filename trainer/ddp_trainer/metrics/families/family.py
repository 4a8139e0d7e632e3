"""Data types of the catalogue: :class:`Family`, one metric family, and :class:`Series`, one number of it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.metric_names import cell

UNITS: Final = frozenset({"seconds", "bytes", "ratio", "hertz"})
INFINITE: Final = "+Inf"
"""Bound of a histogram's last bucket, as Prometheus writes it."""


class Kind(StrEnum):
    """Type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """A ``_sum`` and a ``_count``."""
    HISTOGRAM = "histogram"
    """Each cell of the metrics file counts one bucket alone. The exposition makes the buckets cumulative, as Prometheus
    requires.
    """
    INFO = "info"
    """Always 1; the labels carry the information."""


class Scope(StrEnum):
    """Owner of a family's numbers, which sets how many series a job has."""

    RANK = "rank"
    """One per rank, with the label ``rank``."""
    POD = "pod"
    """One per pod: from the launcher, from the aggregator, or on checkpoints that local rank 0 writes and loads."""
    JOB = "job"
    """One per job: the value is the same on all ranks, so only rank 0 exports it."""


class Source(StrEnum):
    """Origin of a family's numbers."""

    RANK_FILE = "rank file"
    AGENT_FILE = "launcher file"
    PROCESS = "/proc"
    FLIGHT_RECORDER = "flight recorder"
    """torch's own record of its collectives, readable by every process that can reach the rank."""
    NVML = "NVML"
    """NVIDIA's management library, read by the aggregator."""
    AGGREGATOR = "aggregator"
    SCRIPT = "script"
    """The script itself, by ``attach.log()``: see :mod:`ddp_trainer.metrics.storage.user_values`."""


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a family. Its ``key`` also names the cell of the metrics file that holds it."""

    key: str
    sample: str
    """Name of the sample in the exposition."""
    labels: dict[str, str]
    """Labels other than ``ddp_job`` and ``rank``."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family. Its type and its unit follow from its name, see :attr:`kind` and :attr:`unit`."""

    name: str
    help: str
    _: KW_ONLY
    scope: Scope
    source: Source
    labels: tuple[str, ...] = ()
    """Labels other than ``ddp_job``, which every family has, and ``rank``, which scope rank has."""
    values: tuple[str, ...] = ()
    """All values of the one label, if that set is closed."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without the last bucket, which has none."""
    is_summary: bool = False
    is_absent_at_first: bool = False
    """True if a counter is absent from a metrics file until it is reported: its number belongs to the whole job and
    outlives its pods, so that a jump from 0 to the job's total would read as an increase, or only ranks in some
    parallel layouts have it.
    """

    @property
    def kind(self) -> Kind:
        """Type of the family: a counter is named ``_total``, an info family ``_info``."""
        if self.buckets:
            return Kind.HISTOGRAM
        if self.is_summary:
            return Kind.SUMMARY
        return {"total": Kind.COUNTER, "info": Kind.INFO}.get(self.name.rpartition("_")[2], Kind.GAUGE)

    @property
    def unit(self) -> str:
        """Base unit, the last word of the name before ``_total``; empty for a number without a unit."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in UNITS else ""

    def series(self) -> tuple[Series, ...]:
        """Return every series of this family that is known in advance; none for info, or of names of a script."""
        if self.kind is Kind.INFO or self.source is Source.SCRIPT:
            return ()
        if self.kind in {Kind.SUMMARY, Kind.HISTOGRAM}:
            bounds = (*map(str, self.buckets), INFINITE) if self.buckets else ()
            counts = [Series(cell(self.name, bound), f"{self.name}_bucket", {"le": bound}) for bound in bounds]
            return (*counts, *(Series(f"{self.name}{part}", f"{self.name}{part}", {}) for part in ("_sum", "_count")))
        if not self.values:
            return (Series(self.name, self.name, {}),)
        (label,) = self.labels
        return tuple(Series(cell(self.name, value), self.name, {label: value}) for value in self.values)

    @property
    def initial(self) -> float | None:
        """Initial value in a new metrics file; None if the series is absent until it is reported.

        Counters and states start at 0, except for those with ``is_absent_at_first``. Other gauges start absent.
        """
        return None if self.is_absent_at_first or (self.kind is Kind.GAUGE and not self.values) else 0.0
