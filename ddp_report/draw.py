"""Drawing of a report: axis scales, curves and bands as SVG paths, and heat maps as PNG.

Paths are in a box of 1000 by 100 that the page scales; labels are outside of it. Only numbers computed in this package
are written, so the output needs no escaping.

A heat map has one pixel per value, so that a thousand ranks need only kilobytes. Its colours are viridis, from dark
(low) to yellow (high), which colour-blind readers can read (Nuñez, Anderton and Renslow 2018). Missing values are
transparent.
"""

from __future__ import annotations

import base64
import math
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddp_report.series import Values

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
    step = next((interval for interval in _TIME_STEPS if span / interval <= most), math.ceil(span / most / _DAY) * _DAY)
    return [Tick(step * index / span, since(step * index)) for index in range(int(span / step) + 1)]


def since(seconds: float) -> str:
    """Format the time since the start.

    >>> [since(each) for each in (0, 45, 90, 3600, 5400, 90000, 172800)]
    ['0', '45 s', '1:30 min', '1 h', '1:30 h', '1 d 1 h', '2 d']
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s" if rounded else "0"
    if rounded < 3600:
        return f"{rounded // 60} min" if rounded % 60 == 0 else f"{rounded // 60}:{rounded % 60:02} min"
    if rounded < _DAY:
        return f"{rounded // 3600} h" if rounded % 3600 < 60 else f"{rounded // 3600}:{rounded % 3600 // 60:02} h"
    hours = rounded % _DAY // 3600
    return f"{rounded // _DAY} d" + (f" {hours} h" if hours else "")


def elapsed_text(seconds: float) -> str:
    """Format a time since the start, with tenths in the first minute.

    >>> elapsed_text(5.72), elapsed_text(75)
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


WIDTH: Final = 1000
HEIGHT: Final = 100


BRIDGED: Final = 2
"""Maximum number of empty intervals that do not interrupt a curve; samples may miss single intervals."""


def line(values: Values, scale: Scale, *, filled: bool = False) -> str:
    """Return a curve, interrupted where values are missing."""
    shapes = []
    for run in _merge_close_runs(_runs(values)):
        points = [(_x(index + 0.5, len(values)), _y(scale.place(value))) for index, value in run]
        if len(points) == 1:  # a single point would be invisible
            half = WIDTH / len(values) / 2
            points = [(points[0][0] - half, points[0][1]), (points[0][0] + half, points[0][1])]
        path = "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        if filled:
            base = f"L{_short(points[-1][0])} {HEIGHT}L{_short(points[0][0])} {HEIGHT}Z"
            shapes.append(f'<path class="fill" d="M{path}{base}"/>')
        shapes.append(f'<path class="curve" d="M{path}"/>')
    return "".join(shapes)


def steps(values: Values, scale: Scale) -> str:
    """Return a step curve with one value per interval."""
    shapes = []
    for run in _runs(values):
        path, before = "", None
        for index, value in run:
            y = _short(_y(scale.place(value)))
            left, right = _short(_x(index, len(values))), _short(_x(index + 1, len(values)))
            path += f"{'M' if before is None else 'L'}{left} {y}H{right}"
            before = y
        shapes.append(f'<path class="curve" d="{path}"/>')
    return "".join(shapes)


def stacked(bands: Mapping[str, Values]) -> list[str]:
    """Return stacked bands, each as share of its interval's total; one path per band, bottom first."""
    count = len(next(iter(bands.values()), ()))
    sums = [sum(band[index] or 0.0 for band in bands.values()) for index in range(count)]
    below = [0.0] * count
    paths = []
    for band in bands.values():
        tops = [below[index] + (band[index] or 0.0) / sums[index] if sums[index] > 0 else 0.0 for index in range(count)]
        paths.append("".join(_band_path(run, below, tops, count) for run in _runs_of(sums)))
        below = tops
    return paths


def _band_path(run: Sequence[int], below: Sequence[float], tops: Sequence[float], count: int) -> str:
    upper = "".join(
        f"{'L' if at else 'M'}{_short(_x(index, count))} {_short(_y(tops[index]))}H{_short(_x(index + 1, count))}"
        for at, index in enumerate(run)
    )
    lower = "".join(
        f"L{_short(_x(index + 1, count))} {_short(_y(below[index]))}H{_short(_x(index, count))}"
        for index in reversed(run)
    )
    return f"{upper}{lower}Z"


def _runs_of(sums: Sequence[float]) -> Iterator[list[int]]:
    for run in _runs(tuple(interval_sum if interval_sum > 0 else None for interval_sum in sums)):
        yield [index for index, _ in run]


def _runs(values: Values) -> Iterator[list[tuple[int, float]]]:
    """Yield runs of consecutive known values with their indices."""
    run: list[tuple[int, float]] = []
    for index, value in enumerate(values):
        if value is not None:
            run.append((index, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _merge_close_runs(runs: Iterable[list[tuple[int, float]]]) -> Iterator[list[tuple[int, float]]]:
    """Merge runs with short gaps between them."""
    joined: list[tuple[int, float]] = []
    for run in runs:
        if joined and run[0][0] - joined[-1][0] - 1 > BRIDGED:
            yield joined
            joined = []
        joined += run
    if joined:
        yield joined


def _x(index: float, count: int) -> float:
    return WIDTH * index / count


def _y(place: float) -> float:
    return HEIGHT * (1 - place)


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")


STOPS: Final = ("440154", "482878", "3e4989", "31688e", "26828e", "1f9e89", "35b779", "6ece58", "b5de2b", "fde725")
"""Colours at equal distances, from low to high."""

_LEVELS: Final = 64


def grid(rows: Sequence[Values], low: float, high: float) -> str:
    """Return the image as a data URL.

    Args:
        rows: Rows from top to bottom, at least one, each with at least one value.
        low: Value of the darkest colour.
        high: Value of the brightest colour.
    """
    width = len(rows[0])
    lines = b"".join(b"\0" + bytes(_level(value, low, high) for value in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)  # 8 bits per pixel, with a palette
    palette = bytes(3) + b"".join(bytes.fromhex(color(index / (_LEVELS - 1))) for index in range(_LEVELS))
    picture = (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"PLTE", palette)
        + _chunk(b"tRNS", b"\0")  # the first palette colour is transparent
        + _chunk(b"IDAT", zlib.compress(lines, 9))
        + _chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def color(share: float) -> str:
    """Return the colour at a share between low (0) and high (1), as six hexadecimal digits.

    >>> color(0), color(1)
    ('440154', 'fde725')
    """
    place = min(1.0, max(0.0, share)) * (len(STOPS) - 1)
    index = min(int(place), len(STOPS) - 2)
    pairs = zip(bytes.fromhex(STOPS[index]), bytes.fromhex(STOPS[index + 1]), strict=True)
    return bytes(round(one + (other - one) * (place - index)) for one, other in pairs).hex()


def bounds(rows: Sequence[Values]) -> tuple[float, float]:
    """Return the value range of the colours: nearly all values, but wide enough that noise does not fill it."""
    values = sorted(value for row in rows for value in row if value is not None)
    if not values:
        return 0.0, 1.0
    low, middle, high = (values[round((len(values) - 1) * share)] for share in (0.02, 0.5, 0.98))
    return min(low, middle * 0.9), max(high, middle * 1.1, low + 1e-9)


def _level(value: float | None, low: float, high: float) -> int:
    if value is None:
        return 0
    return 1 + min(_LEVELS - 1, max(0, int((value - low) / (high - low) * _LEVELS)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
