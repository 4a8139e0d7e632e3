"""A few numbers as a line of little bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BLOCKS: Final = "▁▂▃▄▅▆▇█"
PLAIN: Final = "_.-~=+*#"
"""For terminals that have no blocks."""


def sparkline(values: Sequence[float | None], width: int, *, unicode: bool = True) -> str:
    """The last ``width`` numbers; a gap where there was none.

    The foot is zero, so that a line which trembles by a percent looks flat, as it should.

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
