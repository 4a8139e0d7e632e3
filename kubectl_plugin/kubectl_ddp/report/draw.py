"""Curves and bands as SVG paths in a box of 1000 by 100 that the page scales; labels are outside of it.

Only numbers computed in this package are written, so the output needs no escaping.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kubectl_ddp.report.scale import Scale
from kubectl_ddp.report.timeline import Values

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
    wholes = [sum(band[index] or 0.0 for band in bands.values()) for index in range(count)]
    below = [0.0] * count
    paths = []
    for band in bands.values():
        tops = [
            below[index] + (band[index] or 0.0) / wholes[index] if wholes[index] > 0 else 0.0 for index in range(count)
        ]
        paths.append("".join(_band_path(run, below, tops, count) for run in _runs_of(wholes)))
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


def _runs_of(wholes: Sequence[float]) -> Iterator[list[int]]:
    for run in _runs(tuple(whole if whole > 0 else None for whole in wholes)):
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
