"""Axis scales with round numbers, and number formatting."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_DAY: Final = 86_400
_MOST_DECADES: Final = 3
"""Number of decades above which the axis is logarithmic."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis."""

    place: float
    """Position from 0 (start) to 1 (end)."""
    text: str


@dataclass(frozen=True, slots=True)
class Scale:
    """Mapping of values to positions on an axis."""

    low: float
    high: float
    is_logarithmic: bool = False

    def place(self, value: float) -> float:
        """Return the position of a value from 0 (bottom) to 1 (top), clamped to this range."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.is_logarithmic else (self.low, self.high)
        value = math.log10(max(value, self.low)) if self.is_logarithmic else value
        return min(1.0, max(0.0, (value - low) / (high - low)))


def scale_of(values: Sequence[float], *, from_zero: bool = False) -> Scale:
    """Return a scale that covers these finite values and ends in round numbers.

    >>> scale_of([3.0, 97.0]), scale_of([5.0], from_zero=True)
    (Scale(low=0.0, high=100.0, is_logarithmic=False), Scale(low=0.0, high=6.0, is_logarithmic=False))
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low > 0 and not from_zero and high / low > 10**_MOST_DECADES:
        return Scale(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), is_logarithmic=True)
    low = min(0.0, low) if from_zero else low
    if high <= low:
        high, low = low + (abs(low) or 1.0) * 0.1, low if from_zero else low - (abs(low) or 1.0) * 0.1
    step = _round_step((high - low) / 4)
    return Scale(math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step)


def ticks(scale: Scale) -> list[Tick]:
    """Return three to six round numbers of a scale."""
    if scale.is_logarithmic:
        first, last = round(math.log10(scale.low)), round(math.log10(scale.high))
        every = max(1, math.ceil((last - first) / 5))
        return [Tick(scale.place(10.0**power), format_number(10.0**power)) for power in range(first, last + 1, every)]
    step = _round_step((scale.high - scale.low) / 4)
    count = round((scale.high - scale.low) / step)
    values = [scale.low + step * index for index in range(count + 1)]
    return [Tick(scale.place(value), format_number(round(value, 12))) for value in values]


def time_ticks(start: float, end: float, *, most: int = 6) -> list[Tick]:
    """Return ticks of the time since the start, at round intervals."""
    span = end - start
    step = next((each for each in _TIME_STEPS if span / each <= most), math.ceil(span / most / _DAY) * _DAY)
    return [Tick(step * index / span, since(step * index)) for index in range(int(span / step) + 1)]


def since(seconds: float) -> str:
    """Format the time since the start.

    >>> [since(each) for each in (0, 45, 90, 3600, 5400, 90000, 172800)]
    ['0', '45 s', '1:30 min', '1 h', '1:30 h', '1 d 1 h', '2 d']
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole else "0"
    if whole < 3600:
        return f"{whole // 60} min" if whole % 60 == 0 else f"{whole // 60}:{whole % 60:02} min"
    if whole < _DAY:
        return f"{whole // 3600} h" if whole % 3600 < 60 else f"{whole // 3600}:{whole % 3600 // 60:02} h"
    hours = whole % _DAY // 3600
    return f"{whole // _DAY} d" + (f" {hours} h" if hours else "")


def moment(seconds: float) -> str:
    """Format a time since the start, with tenths in the first minute.

    >>> moment(5.72), moment(75)
    ('5.7 s', '1:15 min')
    """
    return f"{seconds:.1f} s" if seconds < 59.95 else since(seconds)


def clock(moment: float) -> str:
    """Format a Unix time in UTC, with seconds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(moment))
    except (OverflowError, ValueError, OSError):
        return ""


def format_number(value: float) -> str:
    """Format a number compactly.

    >>> [format_number(each) for each in (0, 0.00012, 0.5, 1234, 56_000, 3.2e6, 1e12)]
    ['0', '0.00012', '0.5', '1234', '56k', '3.2M', '1e+12']
    """
    size = abs(value)
    if size >= 1e12 or 0 < size < 1e-4:
        return f"{value:.3g}"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Format a duration with three significant digits below one minute.

    >>> [duration(each) for each in (0.00042, 0.0193, 4.31, 75, 4000, 200_000)]
    ['420 µs', '19.3 ms', '4.31 s', '1:15 min', '1:06 h', '2 d 7 h']
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs" if seconds else "0 s"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else since(seconds)


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(size * power for size in (1, 2, 2.5, 5, 10) if size * power >= rough * (1 - 1e-9))
