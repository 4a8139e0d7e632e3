"""Common time axis of equal intervals, and the growth of counters in each."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.report.series import Series

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
    readings = [[moment for moment, _ in each.known()] for each in series]
    told = [times for times in readings if len(times) > 1]
    if not told:
        return None
    start, end = min(times[0] for times in told), max(times[-1] for times in told)
    start = start if since is None else min(start, since)
    # Intervals shorter than the sampling interval would show artefacts of the sampling.
    between = max(_median_interval(times) for times in told)
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
    if series.is_whole and readings and (index := bisect.bisect_left(series.times, readings[0][0])) > 0:
        readings.insert(0, (series.times[index - 1], 0.0))
    for (began, before), (ended, after) in itertools.pairwise(readings):
        if math.isfinite(before) and math.isfinite(after):
            _spread(after - before if after >= before else after, began, ended, timeline, amounts, covered)
    return Growth(tuple(amounts), tuple(covered))


def _spread(
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
    amounts = tuple(map(sum, zip(*(each.amounts for each in grown), strict=True)))
    return Growth(amounts, tuple(map(max, zip(*(each.covered for each in grown), strict=True))))


def total(values: Iterable[Values]) -> Values:
    """Return the sum of the known values of each interval."""
    return tuple(
        sum(each for each in column if each is not None) if any(each is not None for each in column) else None
        for column in zip(*values, strict=True)
    )


def elementwise_ratio(dividends: Values, divisors: Values) -> Values:
    """Return the ratio per interval; None if a value is unknown or the divisor is 0."""
    return tuple(
        dividend / divisor if dividend is not None and divisor else None
        for dividend, divisor in zip(dividends, divisors, strict=True)
    )
