"""Rows of the table of ranks: one per rank if they fit, else one per pod with the worst first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from kubectl_ddp.status.job_tables import RANK_COLORS
from kubectl_ddp.status.rank_status import RankActivity, RankState
from kubectl_ddp.status.stragglers import RATIO
from kubectl_ddp.top.drawing import mean, phase_bar
from kubectl_ddp.util.text_table import NOTHING, Cell, Style, Table, count, duration, format_ranges, number

HEADER: Final = ("RANK", "POD", "STATE", "STEP", "SAMPLES/S", "SEC/STEP", "BUSY", "STEP TIME", "LAST STEP")
BAR_WIDTH: Final = 24
NARROW: Final = 96
"""Number of columns below which the bars are half as long."""

_WORST: Final = (RankActivity.DOWN, RankActivity.STOPPED, RankActivity.AWAITED, RankActivity.UP)


@dataclass(frozen=True, slots=True)
class Row:
    """One rank, or all ranks of a pod in one row."""

    ranks: tuple[RankState, ...]
    slow: Mapping[int, float] = field(default_factory=dict)
    """Busy time of each rank relative to the median."""

    @property
    def state(self) -> RankActivity:
        """Worst state of the ranks."""
        return min((one.state for one in self.ranks), key=_WORST.index)

    @property
    def max_slowdown(self) -> float:
        """Slowdown of the slowest rank; 1 if unknown."""
        return max((self.slow.get(one.rank, 1.0) for one in self.ranks), default=1.0)

    @property
    def last_step(self) -> float | None:
        """Time of the last step of the rank that has been without a step for longest."""
        return min((one.last_step for one in self.ranks if one.last_step is not None), default=None)

    @property
    def sort_key(self) -> tuple[int, float, float]:
        """Sort key by urgency, most urgent first: ranks that do not run, slow ranks, ranks without recent steps."""
        slowness = self.max_slowdown if self.max_slowdown > RATIO else 1.0
        return _WORST.index(self.state), -slowness, self.last_step or 0.0

    def cells(self, now: float, bar_width: int) -> list[Cell]:
        """Return the cells of the row under :data:`HEADER`."""
        ranks, last = self.ranks, self.last_step
        seconds = _max_value(ranks, lambda one: one.seconds_per_step)
        rates = [one.samples_per_second for one in ranks if one.samples_per_second is not None]
        steps = [one.step for one in ranks if one.step is not None]
        bar = phase_bar(mean([one.phases for one in ranks]), bar_width)
        return [
            Cell(format_ranges([one.rank for one in ranks])),
            Cell(ranks[0].pod),
            Cell(self.state, RANK_COLORS[self.state]),
            Cell(count(min(steps, default=None))),
            Cell(number(sum(rates) if rates else None)),
            Cell(number(seconds, digits=3)),
            self._busy_cell(),
            bar if bar.text else Cell(NOTHING),
            Cell(NOTHING if last is None else f"{duration(max(0.0, now - last))} ago"),
        ]

    def _busy_cell(self) -> Cell:
        seconds = _max_value(self.ranks, lambda one: one.busy_seconds)
        text = number(seconds, digits=3)
        return Cell(f"{text} !{self.max_slowdown:.1f}x", "red") if self.max_slowdown > RATIO else Cell(text)


def rows_of(ranks: Sequence[RankState], slow: Mapping[int, float], room: int | None) -> tuple[list[Row], int]:
    """Return rows for at most ``room`` lines, and the number of rows left out.

    Each rank has its own row if all fit. Otherwise each pod has one row. If pods do not fit either, or there is only
    one pod, the worst rows come first.
    """
    single = [Row((one,), slow) for one in ranks]
    if room is None or len(single) <= room:
        return single, 0
    pods = groupby(sorted(ranks, key=lambda one: one.pod), key=lambda one: one.pod)
    grouped = sorted((Row(tuple(of_pod), slow) for _, of_pod in pods), key=lambda row: row.ranks[0].rank)
    rows = sorted(grouped if len(grouped) > 1 else single, key=lambda row: row.sort_key)
    if len(rows) <= room:
        return rows, 0
    kept = max(0, room - 1)
    return rows[:kept], len(rows) - kept


def table(rows: Sequence[Row], now: float, style: Style) -> list[str]:
    """Return header and rows as lines."""
    bar_width = BAR_WIDTH if style.width is None or style.width >= NARROW else BAR_WIDTH // 2
    return Table(HEADER, [row.cells(now, bar_width) for row in rows]).render(style).splitlines()


def _max_value(ranks: Sequence[RankState], value: Callable[[RankState], float | None]) -> float | None:
    return max((told for one in ranks if (told := value(one)) is not None), default=None)
