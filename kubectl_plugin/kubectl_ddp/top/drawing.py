"""Sparklines, bars of letters for the phases of a step, and lines cut to the width of a terminal."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.util.text_table import Cell

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


def curve(values: Sequence[float | None], width: int, *, unicode: bool = True) -> str:
    """Return all values as at most ``width`` bars between the lowest and the highest, with a gap where none is known.

    Each bar is the mean of its values.

    >>> curve([4.0, 4.0, 3.0, 3.0, None, None, 2.0, 1.0], 4), curve([2.0, None, 1.0], 8, unicode=False)
    ('█▅ ▁', '# _')
    """
    number = min(width, len(values))
    edges = [at * len(values) // number for at in range(number + 1)] if number > 0 else []
    means = [_mean_of_known(values[start:end]) for start, end in itertools.pairwise(edges)]
    known = [value for value in means if value is not None]
    lowest = min(known, default=0.0)
    return sparkline([None if value is None else value - lowest for value in means], number, unicode=unicode)


def _mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _bar(value: float | None, highest: float, bars: str) -> str:
    if value is None:
        return " "
    if highest <= 0:
        return bars[0]
    return bars[max(0, math.ceil(value / highest * len(bars)) - 1)]


_PIECE: Final = re.compile(r"(\x1b\[[0-9;]*m)|([^\x1b]+)")
_END_OF_COLOR: Final = "\033[0m"


def cut(line: str, width: int) -> str:
    r"""Return the first ``width`` characters of a line; colour codes do not count.

    >>> cut("\033[31mdown\033[0m now", 2), cut("short", 10)
    ('\x1b[31mdo\x1b[0m', 'short')
    """
    kept, room = [], width
    for color, text in _PIECE.findall(line):
        if color and (room > 0 or color == _END_OF_COLOR):
            kept.append(color)
        kept.append(text[: max(0, room)])
        room -= len(text)
    return "".join(kept)


LETTERS: Final[Mapping[str, tuple[str, str]]] = {
    Phase.DATA_WAIT: ("d", "on yellow"),
    Phase.HOST_TO_DEVICE: ("h", "on white"),
    Phase.FORWARD: ("f", "on cyan"),
    Phase.BACKWARD: ("b", "on blue"),
    Phase.COMM_EXPOSED: ("c", "on red"),
    Phase.OPTIMIZER: ("o", "on green"),
    Phase.CHECKPOINT: ("s", "on magenta"),
    Phase.OTHER: (".", ""),
}
"""Letter and colour by phase, in the order of a step."""

LEGEND: Final = "phases: d data, h to device, f forward, b backward, c communication, o optimizer, s checkpoint"


def phase_bar(shares: Mapping[str, float], width: int) -> Cell:
    """Return a bar of at most ``width`` letters for the shares of a step, which add up to at most 1.

    >>> phase_bar({"forward": 0.25, "backward": 0.5, "comm_exposed": 0.25}, 8).text
    'ffbbbbcc'
    """
    spans, reached, drawn = [], 0.0, 0
    for phase, (letter, color) in LETTERS.items():
        reached += shares.get(phase, 0.0)
        length = max(0, round(reached * width) - drawn)
        drawn += length
        if length:
            spans.append(Cell(letter * length, color))
    return Cell("".join(span.text for span in spans), spans=tuple(spans))


def mean(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean shares over several ranks.

    >>> mean([{"forward": 1.0}, {"forward": 0.5, "backward": 0.5}])
    {'forward': 0.75, 'backward': 0.25}
    """
    told = [each for each in shares if each]
    return {
        str(phase): sum(each.get(phase, 0.0) for each in told) / len(told) for phase in LETTERS if _any(told, phase)
    }


def _any(told: Sequence[Mapping[str, float]], phase: str) -> bool:
    return any(each.get(phase) for each in told)
