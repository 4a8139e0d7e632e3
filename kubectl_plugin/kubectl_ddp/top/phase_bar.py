"""Bar of letters for the time breakdown of a step, readable without colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.util.text_table import Cell

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
