"""Data types of the catalogue: :class:`Family`, one metric family, and :class:`Series`, one number of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

INFINITE: Final = "+Inf"
"""Bound of a histogram's last bucket, as Prometheus writes it."""


class Kind(StrEnum):
    """Type of a metric family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """A ``_sum`` and a ``_count``."""
    HISTOGRAM = "histogram"
    """Each cell of the board counts one bucket alone. The exposition makes the buckets cumulative, as Prometheus
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

    RANK_BOARD = "rank board"
    AGENT_BOARD = "launcher board"
    PROCESS = "/proc"
    FLIGHT_RECORDER = "flight recorder"
    """torch's own record of its collectives, readable by every process that can reach the rank."""
    NVML = "NVML"
    """NVIDIA's management library, read by the aggregator."""
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a family. Its ``key`` also names the cell of the board that holds it."""

    key: str
    sample: str
    """Name of the sample in the exposition."""
    labels: dict[str, str]
    """Labels other than ``ddp_job`` and ``rank``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family."""

    name: str
    kind: Kind
    scope: Scope
    source: Source
    unit: str = ""
    labels: tuple[str, ...] = ()
    """Labels other than ``ddp_job``, which every family has, and ``rank``, which scope rank has."""
    values: tuple[str, ...] = ()
    """All values of the one label, if that set is closed."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without the last bucket, which has none."""
    remembered: bool = False
    """True if the number belongs to the whole job and outlives its pods. It is absent from a board until it is
    reported: a jump from 0 to the job's total would read as an increase.
    """
    of_layout: bool = False
    """True if only ranks in some parallel layouts have it. It is absent from a board until it is reported."""
    help: str

    def series(self) -> tuple[Series, ...]:
        """Return every series of this family that is known in advance; none for an info family."""
        if self.kind is Kind.INFO:
            return ()
        if self.kind is Kind.SUMMARY:
            return tuple(Series(f"{self.name}{part}", f"{self.name}{part}", {}) for part in ("_sum", "_count"))
        if self.kind is Kind.HISTOGRAM:
            bounds = (*map(str, self.buckets), INFINITE)
            counts = [Series(cell(self.name, bound), f"{self.name}_bucket", {"le": bound}) for bound in bounds]
            return (*counts, *(Series(f"{self.name}{part}", f"{self.name}{part}", {}) for part in ("_sum", "_count")))
        if not self.values:
            return (Series(self.name, self.name, {}),)
        (label,) = self.labels
        return tuple(Series(cell(self.name, value), self.name, {label: value}) for value in self.values)

    @property
    def initial(self) -> float | None:
        """Initial value on a new board; None if the series is absent until it is reported.

        Counters and states start at 0. Other gauges start absent, as do series with ``remembered`` or ``of_layout``.
        """
        is_absent = self.remembered or self.of_layout or (self.kind is Kind.GAUGE and not self.values)
        return None if is_absent else 0.0


def cell(name: str, value: str = "") -> str:
    """Return the key of a series.

    >>> cell("ddp_steps_total"), cell("ddp_worker_restarts_total", "failure")
    ('ddp_steps_total', 'ddp_worker_restarts_total{failure}')
    """
    return f"{name}{{{value}}}" if value else name
