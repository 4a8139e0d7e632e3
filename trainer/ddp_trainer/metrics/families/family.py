"""What a metric family is: the words of the catalogue, and which series follow from an entry."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.constants import MetricLabel

INFINITE: Final = "+Inf"
"""The bound of a histogram's last bucket, in Prometheus' word."""


class Kind(StrEnum):
    """What a family's numbers mean."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SUMMARY = "summary"
    """A ``_sum`` and a ``_count``."""
    HISTOGRAM = "histogram"
    """Of the board's cells each counts one bucket alone; the exposition adds up those below, as Prometheus wants it."""
    INFO = "info"
    """Always 1; the labels are what it says."""


class Scope(StrEnum):
    """Whose number it is, and so how many series a job has of it."""

    RANK = "rank"
    """Every rank's own; carries the label ``rank``."""
    POD = "pod"
    """One per pod: the launcher's, the aggregator's, and the checkpoints that local rank 0 writes and loads."""
    JOB = "job"
    """One per job: the same on all ranks, so rank 0 alone tells it."""


class Source(StrEnum):
    """Where the numbers come from."""

    RANK_BOARD = "rank board"
    AGENT_BOARD = "launcher board"
    PROCESS = "/proc"
    FLIGHT_RECORDER = "flight recorder"
    """What torch itself knows of its collectives; read by whoever can reach the process."""
    NVML = "NVML"
    """NVIDIA's management library, read by the aggregator."""
    AGGREGATOR = "aggregator"


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a family; its ``key`` also names the cell of the board that holds it."""

    key: str
    sample: str
    """Name of the sample in the exposition."""
    labels: dict[str, str]
    """Beyond ``ddp_job`` and ``rank``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family."""

    name: str
    kind: Kind
    scope: Scope
    source: Source
    unit: str = ""
    labels: tuple[MetricLabel, ...] = ()
    """Beyond ``ddp_job``, which every family has, and ``rank``, which scope rank has."""
    values: tuple[str, ...] = ()
    """All values of the one label, where that set is closed."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, without the last, which has none."""
    remembered: bool = False
    """The number is that of the whole job and outlives its pods: a board that has not been told it has none, since a
    jump from 0 to what the job has come to would read as an increase."""
    of_layout: bool = False
    """Only ranks that share a model in some way have it: a board that has not been told so has none."""
    help: str

    def series(self) -> tuple[Series, ...]:
        """Every series of this family that can be named beforehand; none for an info family."""
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
        """What a new board holds: a counter and a state start at 0; another gauge, what is remembered, and what only
        some layouts have, is absent until it is told.
        """
        is_absent = self.remembered or self.of_layout or (self.kind is Kind.GAUGE and not self.values)
        return None if is_absent else 0.0


def cell(name: str, value: str = "") -> str:
    """The key of a series.

    >>> cell("ddp_steps_total"), cell("ddp_worker_restarts_total", "failure")
    ('ddp_steps_total', 'ddp_worker_restarts_total{failure}')
    """
    return f"{name}{{{value}}}" if value else name
