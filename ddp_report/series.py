"""Time series of a job's pods and of any other source: name, labels, and values on a common time axis."""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ddp_trainer.common.constants import HISTORY_VERSION
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.termination_message import workers
from kubectl_ddp.util.concurrency import map_in_threads

POD: Final = "pod"
"""Label with the pod that reported a series."""

MOST_SERIES: Final = 5_000
MOST_READINGS: Final = 1_000
"""Limits per pod, since a pod may report anything."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series."""

    name: str
    times: Sequence[float]
    """Ascending Unix times."""
    values: Sequence[float | None]
    """One value per time; None if missing."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    """True if the series is complete: a counter that appears later than the first time started there at 0."""

    def known(self) -> Iterator[tuple[float, float]]:
        """Yield the times and values that are not missing."""
        return ((moment, value) for moment, value in zip(self.times, self.values, strict=True) if value is not None)

    @property
    def last(self) -> float | None:
        """Latest finite value."""
        return next((value for value in reversed(self.values) if value is not None and math.isfinite(value)), None)


def select_series(series: Iterable[Series], name: str, *labels: str) -> list[Series]:
    """Return the series with this name and exactly these labels in addition to the pod's."""
    wanted = {*labels}
    return [one for one in series if one.name == name and one.labels.keys() - {POD} == wanted]


def read(text: str, pod: str) -> list[Series]:
    """Parse the history of a pod's aggregator; return no series if it is invalid.

    The format is defined in ``ddp_trainer.metrics.serve.history``.
    """
    try:
        document = json.loads(text)
        if document["version"] != HISTORY_VERSION:
            return []
        times = [float(moment) for moment in document["times"]]
        if len(times) > MOST_READINGS:
            return []
        rising = [index for index, moment in enumerate(times) if index == 0 or moment > max(times[:index])]
        found = [_series(entry, times, pod) for entry in document["series"][:MOST_SERIES]]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return []
    return [
        Series(entry.name, [times[index] for index in rising], [entry.values[index] for index in rising], entry.labels)
        for entry in found
    ]


def _series(entry: Mapping[str, Any], times: Sequence[float], pod: str) -> Series:
    name = str(entry["name"])
    values = [None if value is None else float(value) for value in entry["values"]]
    if len(values) != len(times):
        raise ValueError(name)
    labels = {str(label): str(value) for label, value in entry["labels"].items()} | {POD: pod}
    return Series(name, times, list(_cumulative_sum(values)) if name.endswith("_total") else values, labels)


def _cumulative_sum(increases: Iterable[float | None]) -> Iterator[float | None]:
    total = 0.0
    for grown in increases:
        total += grown or 0.0
        yield None if grown is None else total


def load_series(backend: Backend, snapshot: Snapshot) -> list[Series]:
    """Return the series of all worker pods, queried in parallel; pods without history are left out."""
    by_pod = map_in_threads(partial(_of_pod, backend), workers(snapshot.pods))
    return [series for of_pod in by_pod for series in of_pod]


def _of_pod(backend: Backend, pod: Object) -> list[Series]:
    try:
        text = backend.metrics_history(pod)
    except DdpError:  # access denied, or the pod has gone: continue without it
        return []
    return read(text, str(pod["metadata"]["name"])) if text is not None else []


MOST_PARTS: Final = 120
_LEAST_COVER: Final = 0.2
"""Share of an interval that samples must cover for a rate."""

Values = tuple[float | None, ...]
"""One value per interval; None if unknown."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Axis of ``count`` intervals of ``width`` seconds from ``start``."""

    start: float
    width: float
    count: int

    @property
    def end(self) -> float:
        """End of the last interval."""
        return self.start + self.width * self.count

    def midpoints(self) -> tuple[float, ...]:
        """Return the midpoint of each interval."""
        return tuple(self.start + self.width * (index + 0.5) for index in range(self.count))

    def place(self, moment: float) -> float:
        """Return the position of a time from 0 (start) to 1 (end), clamped to this range."""
        return min(1.0, max(0.0, (moment - self.start) / (self.end - self.start)))

    def part(self, moment: float) -> int:
        """Return the index of the interval that contains a time."""
        return min(self.count - 1, max(0, int((moment - self.start) / self.width)))


def build_timeline(series: Sequence[Series], *, since: float | None = None, most: int = MOST_PARTS) -> Timeline | None:
    """Return the axis that covers all series, or None if none has two samples; starts at ``since`` if earlier."""
    readings = [[moment for moment, _ in one.known()] for one in series]
    sampled = [times for times in readings if len(times) > 1]
    if not sampled:
        return None
    start, end = min(times[0] for times in sampled), max(times[-1] for times in sampled)
    start = start if since is None else min(start, since)
    # Intervals shorter than the sampling interval would show artefacts of the sampling.
    between = max(_median_interval(times) for times in sampled)
    count = min(most, max(1, int((end - start) / between)))
    return Timeline(start, (end - start) / count, count)


def _median_interval(times: Sequence[float]) -> float:
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return gaps[len(gaps) // 2]


@dataclass(frozen=True, slots=True)
class Growth:
    """Growth of counters in each interval of a timeline."""

    amounts: tuple[float, ...]
    covered: tuple[float, ...]
    """Seconds of each interval between samples; the rest is unknown."""

    def per_second(self, width: float) -> Values:
        """Return the growth per second; None for intervals with too little coverage."""
        return tuple(
            amount / seconds if seconds >= _LEAST_COVER * width else None
            for amount, seconds in zip(self.amounts, self.covered, strict=True)
        )

    def known(self, width: float) -> Values:
        """Return the growth; None for intervals with too little coverage."""
        return tuple(
            amount if seconds >= _LEAST_COVER * width else None
            for amount, seconds in zip(self.amounts, self.covered, strict=True)
        )


def growth(series: Series, timeline: Timeline) -> Growth:
    """Distribute the growth of a counter between two samples evenly over the time between them.

    A counter that decreases was reset to 0. A complete counter that appears after the first time of the others started
    at 0 at that time.
    """
    amounts, covered = [0.0] * timeline.count, [0.0] * timeline.count
    readings = list(series.known())
    if series.is_complete and readings and (index := bisect.bisect_left(series.times, readings[0][0])) > 0:
        readings.insert(0, (series.times[index - 1], 0.0))
    for (began, before), (ended, after) in itertools.pairwise(readings):
        if math.isfinite(before) and math.isfinite(after):
            _distribute(after - before if after >= before else after, began, ended, timeline, amounts, covered)
    return Growth(tuple(amounts), tuple(covered))


def _distribute(
    amount: float, began: float, ended: float, timeline: Timeline, amounts: list[float], covered: list[float]
) -> None:
    for index in range(timeline.part(began), timeline.part(ended) + 1):
        left = timeline.start + index * timeline.width
        seconds = min(ended, left + timeline.width) - max(began, left)
        if seconds > 0:
            amounts[index] += amount * seconds / (ended - began)
            covered[index] += seconds


def merge_growth(grown: Sequence[Growth], timeline: Timeline) -> Growth:
    """Return the sum of several counters; covered is the longest coverage of any of them."""
    if not grown:
        return Growth((0.0,) * timeline.count, (0.0,) * timeline.count)
    amounts = tuple(map(sum, zip(*(counter.amounts for counter in grown), strict=True)))
    return Growth(amounts, tuple(map(max, zip(*(counter.covered for counter in grown), strict=True))))


def total(values: Iterable[Values]) -> Values:
    """Return the sum of the known values of each interval."""
    return tuple(
        sum(value for value in column if value is not None) if any(value is not None for value in column) else None
        for column in zip(*values, strict=True)
    )


def elementwise_ratio(dividends: Values, divisors: Values) -> Values:
    """Return the ratio per interval; None if a value is unknown or the divisor is 0."""
    return tuple(
        dividend / divisor if dividend is not None and divisor else None
        for dividend, divisor in zip(dividends, divisors, strict=True)
    )
