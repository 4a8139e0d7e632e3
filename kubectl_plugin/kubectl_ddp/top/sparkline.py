"""Sparkline: a short series of numbers as a line of bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.-~=+*#"
"""Bars for terminals without Unicode blocks."""


def sparkline(values: Sequence[float | None], width: int, *, unicode: bool = True) -> str:
    """Return the last ``width`` values as bars, with a gap for each missing value.

    The scale starts at zero, so variations of a percent look flat.

    >>> sparkline([1.0, 2.0, None, 8.0], 8), sparkline([0.0, 4.0, 8.0], 2, unicode=False)
    ('▁▂ █', '~#')
    """
    shown = [value if value is not None and math.isfinite(value) else None for value in values[-width:]]
    highest = max((value for value in shown if value is not None), default=0.0)
    return "".join(_bar(value, highest, BLOCKS if unicode else PLAIN) for value in shown)


def _bar(value: float | None, highest: float, bars: str) -> str:
    if value is None:
        return " "
    if highest <= 0:
        return bars[0]
    return bars[max(0, math.ceil(value / highest * len(bars)) - 1)]
