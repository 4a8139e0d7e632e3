"""Growth of figures with a size: its exponent, a table in Markdown, and a plot in SVG."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from html import escape
from typing import Final

COLORS: Final = ("#1f6fb2", "#c2571a", "#2e8b57", "#8b3fa0", "#7a5c00", "#555555", "#b3123f")
LEFT, TOP, WIDTH, HEIGHT, LEGEND = 60, 40, 420, 260, 270
"""Place and size of the area of a plot, and the width of the names beside it, in pixels."""

Series = Mapping[str, Mapping[int, float]]
"""Name → size → seconds."""


def growth_exponent(sizes: Mapping[str, int], values: Mapping[str, float]) -> float:
    """Return the exponent of the power law that fits the values best.

    >>> growth_exponent({"a": 1, "b": 10, "c": 100}, {"a": 2.0, "b": 20.0, "c": 200.0})
    1.0
    """
    return fit_growth({sizes[name]: value for name, value in values.items()})


def fit_growth(values: Mapping[int, float]) -> float:
    """Return the same for size → value."""
    points = [(math.log(size), math.log(value)) for size, value in values.items()]
    return round(statistics.linear_regression(*zip(*points, strict=True)).slope, 3)


def growth_table(sizes: Mapping[str, int], series: Series) -> str:
    """Return a table with a row for each name.

    >>> print(growth_table({"10mb": 10, "1gb": 1000}, {"save": {10: 0.002, 1000: 0.2}, "load": {10: 1.0}}))
    | Seconds | 10 MB | 1 GB | Exponent |
    |---|---|---|---|
    | save | 0.00200 | 0.200 | 1.00 |
    | load | 1.00 | - | - |
    <BLANKLINE>
    """
    names = [_readable(name) for name in sizes]
    rows = [["Seconds", *names, "Exponent"], ["---"] * (len(names) + 2)]
    for name, values in series.items():
        growth = f"{fit_growth(values):.2f}" if len(values) > 1 else "-"
        rows.append([name, *(_short(values.get(size)) for size in sizes.values()), growth])
    lines = ["|" + "|".join(row) + "|" if row[0] == "---" else "| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _readable(name: str) -> str:
    """``10mb`` → ``10 MB``, ``100k`` → ``100 k``."""
    digits = name.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = name.removeprefix(digits)
    return f"{digits} {unit.upper() if unit.endswith('b') and len(unit) > 1 else {'m': 'M', 'b': 'G'}.get(unit, unit)}"


def _short(value: float | None) -> str:
    """Return a value with three digits."""
    if value is None:
        return "-"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}" if value < 100 else f"{value:.0f}"


def growth_plot(title: str, axis: str, series: Series) -> str:
    """Return an SVG of lines on two logarithmic axes, sizes from left to right and seconds upwards."""
    sizes = sorted({size for values in series.values() for size in values})
    seconds = [value for values in series.values() for value in values.values()]
    low, high = math.floor(math.log10(min(seconds))), math.ceil(math.log10(max(seconds)))

    def x(size: float) -> float:
        return round(LEFT + WIDTH * math.log(size / sizes[0]) / (math.log(sizes[-1] / sizes[0]) or 1), 1)

    def y(value: float) -> float:
        return round(TOP + HEIGHT * (high - math.log10(value)) / ((high - low) or 1), 1)

    width, height = LEFT + WIDTH + LEGEND, TOP + HEIGHT + 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-labelledby="t">',
        '<g font-family="system-ui, sans-serif" font-size="12">',
        f'<title id="t">{title}</title>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="14" font-weight="bold" fill="#1a1a1a">{title}</text>',
        '<g stroke="#ddd">',
        *(f'<path d="M{LEFT} {y(10.0**power)}h{WIDTH}"/>' for power in range(low, high + 1)),
        *(f'<path d="M{x(size)} {TOP}v{HEIGHT}"/>' for size in sizes),
        '</g><g fill="#1a1a1a" text-anchor="end">',
        *(f'<text x="{LEFT - 8}" y="{y(10.0**power) + 4}">{10.0**power:g} s</text>' for power in range(low, high + 1)),
        '</g><g fill="#1a1a1a" text-anchor="middle">',
        *(f'<text x="{x(size)}" y="{TOP + HEIGHT + 18}">{size:,}</text>' for size in sizes),
        f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 38}">{axis}</text></g>',
    ]
    for number, (name, values) in enumerate(series.items()):
        color, row = COLORS[number % len(COLORS)], TOP + 10 + 22 * number
        points = " ".join(f"{x(size)},{y(value)}" for size, value in sorted(values.items()))
        dots = "".join(f'<circle cx="{x(size)}" cy="{y(value)}" r="3"/>' for size, value in sorted(values.items()))
        growth = f" (exponent {fit_growth(values):.2f})" if len(values) > 1 else ""
        lines += [
            f'<g fill="{color}"><polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>{dots}',
            f'<text x="{LEFT + WIDTH + 16}" y="{row}">{escape(name)}{growth}</text></g>',
        ]
    return "\n".join([*lines, "</g></svg>", ""])
