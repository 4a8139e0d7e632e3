"""A common time axis, in equal parts, and what counters grew by in each of them."""

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
"""Share of a part that readings must cover before a rate is told of it."""

Values = tuple[float | None, ...]
"""One for each part; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """From ``start`` on, ``count`` parts of ``width`` seconds."""

    start: float
    width: float
    count: int

    @property
    def end(self) -> float:
        """Where the last part ends."""
        return self.start + self.width * self.count

    def midpoints(self) -> tuple[float, ...]:
        """The middle of each part."""
        return tuple(self.start + self.width * (index + 0.5) for index in range(self.count))

    def place(self, moment: float) -> float:
        """Where a moment lies, 0 at the start and 1 at the end; outside of that it is put to the nearer one."""
        return min(1.0, max(0.0, (moment - self.start) / (self.end - self.start)))

    def part(self, moment: float) -> int:
        """The part that a moment lies in."""
        return min(self.count - 1, max(0, int((moment - self.start) / self.width)))


def build_timeline(series: Sequence[Series], *, since: float | None = None, most: int = MOST_PARTS) -> Timeline | None:
    """The axis that shows all of these, from ``since`` on if that is earlier; None where none has two readings."""
    readings = [[moment for moment, _ in each.known()] for each in series]
    told = [times for times in readings if len(times) > 1]
    if not told:
        return None
    start, end = min(times[0] for times in told), max(times[-1] for times in told)
    start = start if since is None else min(start, since)
    # A part that is shorter than the time between two readings would show how they were taken.
    between = max(_median_interval(times) for times in told)
    count = min(most, max(1, int((end - start) / between)))
    return Timeline(start, (end - start) / count, count)


def _median_interval(times: Sequence[float]) -> float:
    gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
    return gaps[len(gaps) // 2]


@dataclass(frozen=True, slots=True)
class Growth:
    """What counters grew by in each part of a timeline."""

    amounts: tuple[float, ...]
    covered: tuple[float, ...]
    """Seconds of the part between readings: of the others nothing is known."""

    def per_second(self, width: float) -> Values:
        """Growth per second, where enough of a part is known."""
        return tuple(
            amount / seconds if seconds >= _LEAST_COVER * width else None
            for amount, seconds in zip(self.amounts, self.covered, strict=True)
        )

    def known(self, width: float) -> Values:
        """Growth, where enough of a part is known."""
        return tuple(
            amount if seconds >= _LEAST_COVER * width else None
            for amount, seconds in zip(self.amounts, self.covered, strict=True)
        )


def growth(series: Series, timeline: Timeline) -> Growth:
    """Spread what a counter grew by between two readings evenly over the time between them.

    A counter that falls was begun anew at 0. One that is whole, and appears after the first time that others are told
    for, began at 0 too, since then.
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
    """The sum of several counters; covered is what any of them covers."""
    if not grown:
        return Growth((0.0,) * timeline.count, (0.0,) * timeline.count)
    amounts = tuple(map(sum, zip(*(each.amounts for each in grown), strict=True)))
    return Growth(amounts, tuple(map(max, zip(*(each.covered for each in grown), strict=True))))


def total(values: Iterable[Values]) -> Values:
    """The sum in each part of those that are known there."""
    return tuple(
        sum(each for each in column if each is not None) if any(each is not None for each in column) else None
        for column in zip(*values, strict=True)
    )


def elementwise_ratio(dividends: Values, divisors: Values) -> Values:
    """Part by part; None where either is not known, or there is nothing to divide by."""
    return tuple(
        dividend / divisor if dividend is not None and divisor else None
        for dividend, divisor in zip(dividends, divisors, strict=True)
    )
