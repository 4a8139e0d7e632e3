"""View of a job at one moment: progress, recent history, stragglers and ranks. Pure: equal input gives equal lines.

The table has one row per rank if they fit, else one per pod with the worst first.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.status.describe import no_progress_text, progress_text, restarts_text, startup_text, values_text
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.job_tables import RANK_COLORS, state_cell
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.status.rank_status import RATIO, RankActivity, RankState, rank_states, slowdown_by_rank, stragglers
from kubectl_ddp.util.text_table import NOTHING, Cell, Style, Table, count, duration, format_ranges, number, percent

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
    pieces, room = [], width
    for color, text in _PIECE.findall(line):
        if color and (room > 0 or color == _END_OF_COLOR):
            pieces.append(color)
        pieces.append(text[: max(0, room)])
        room -= len(text)
    return "".join(pieces)


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
    ranks = [rank for rank in shares if rank]
    return {
        str(phase): sum(rank.get(phase, 0.0) for rank in ranks) / len(ranks) for phase in LETTERS if _any(ranks, phase)
    }


def _any(shares: Sequence[Mapping[str, float]], phase: str) -> bool:
    return any(phases.get(phase) for phases in shares)


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
    shown = max(0, room - 1)
    return rows[:shown], len(rows) - shown


def table(rows: Sequence[Row], now: float, style: Style) -> list[str]:
    """Return header and rows as lines."""
    bar_width = BAR_WIDTH if style.width is None or style.width >= NARROW else BAR_WIDTH // 2
    return Table(HEADER, [row.cells(now, bar_width) for row in rows]).render(style).splitlines()


def _max_value(ranks: Sequence[RankState], value: Callable[[RankState], float | None]) -> float | None:
    return max((known for one in ranks if (known := value(one)) is not None), default=None)


RATE_SECONDS: Final = 5.0
"""Window of rates, in seconds."""
JUDGED_SECONDS: Final = 60.0
"""Maximum window for straggler detection, in seconds; single steps vary too much."""
HISTORY_LENGTH: Final = 512
"""Number of values kept for sparklines; no terminal is wider."""

Scrape = Mapping[str, Samples]


class RateWindow:
    """Collects every frame and computes rates."""

    def __init__(self) -> None:
        self.throughput: deque[float | None] = deque(maxlen=HISTORY_LENGTH)
        self.step_seconds: deque[float | None] = deque(maxlen=HISTORY_LENGTH)
        self.loss: deque[float | None] = deque(maxlen=HISTORY_LENGTH)
        self._recent: deque[tuple[float, Scrape]] = deque()
        self._sparse: deque[tuple[float, Scrape]] = deque()

    def frame(
        self, snapshot: Snapshot, samples: Scrape, where: str, now: float
    ) -> tuple[JobState, Mapping[int, float]]:
        """Add a frame and return the job's state with recent rates, and the slowdown of each rank.

        Args:
            snapshot: Job and its pods.
            samples: Metric samples by pod.
            where: Place where the job runs.
            now: Time of a monotonic clock, in seconds.
        """
        _discard_before(self._recent, now - RATE_SECONDS)
        _discard_before(self._sparse, now - JUDGED_SECONDS)
        state = job_state(snapshot, samples, where=where, before=self._recent[0][1] if self._recent else None)
        slow = slowdown_by_rank(self._long_window_states(samples) if self._sparse else state.ranks)
        self._recent.append((now, samples))
        if not self._sparse or now - self._sparse[-1][0] >= RATE_SECONDS:
            self._sparse.append((now, samples))
        self.throughput.append(state.throughput)
        self.step_seconds.append(step_seconds(state.ranks))
        if self.loss or state.loss is not None:  # the curve begins with the first loss, not with the startup
            self.loss.append(state.loss)
        return state, slow

    def _long_window_states(self, samples: Scrape) -> tuple[RankState, ...]:
        return rank_states(samples, {}, self._sparse[0][1])


def step_seconds(ranks: tuple[RankState, ...]) -> float | None:
    """Return the mean step time over the ranks; they wait for one another."""
    seconds = [one.seconds_per_step for one in ranks if one.seconds_per_step is not None]
    return sum(seconds) / len(seconds) if seconds else None


def _discard_before(frames: deque[tuple[float, Scrape]], since: float) -> None:
    """Keep the newest frame that is at least as old as ``since``, and all later ones."""
    while len(frames) > 1 and frames[1][0] <= since:
        frames.popleft()


SPARK_WIDTH: Final = 16
_CURVE_WIDTH: Final = 60
_NAMED: Final = 8
"""Maximum number of stragglers, and of silent pods, listed by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """All data shown at one moment."""

    state: JobState
    now: float
    """Unix time."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """Rank → its busy time relative to the median."""
    throughput: str = ""
    """Sparkline of the throughput."""
    step_time: str = ""
    """Sparkline of the step time."""
    losses: Sequence[float | None] = ()
    """Loss in each view so far, oldest first; None where it was unknown."""
    notes: Sequence[str] = ()
    """Notes at the foot: keys, or errors."""

    def lines(self, style: Style, height: int | None = None) -> list[str]:
        """Return the lines, cut to the style's width and to ``height`` rows; None for all rows."""
        above = [*self._head(style), ""]
        below = [style.apply_color(LEGEND, "dim"), *(style.apply_color(note, "dim") for note in self.notes)]
        if not self.state.ranks:
            lines = [*above, *filter(None, [self.state.reason]), *below[1:]]
        else:
            room = None if height is None else max(1, height - len(above) - len(below) - 1)
            lines = [*above, *self._ranks(style, room), *below]
        if style.width is not None:
            lines = [cut(line, style.width) for line in lines]
        return lines[:height]

    def _head(self, style: Style) -> Iterator[str]:
        state, cell = self.state, state_cell(self.state.state)
        yield f"{state.name}  {style.apply_color(cell.text, cell.color)}  {progress_text(state)}".rstrip()
        yield "  ".join(f"{name} {text}" for name, text in self._facts() if text)
        if sum(loss is not None for loss in self.losses) > 1:
            width = min(_CURVE_WIDTH, (style.width or _CURVE_WIDTH) - len("loss: "))
            yield f"loss: {curve(self.losses, width, unicode=style.unicode)}"
        if state.values:
            yield f"values: {values_text(state.values)}"
        if state.startup is not None and not state.startup.is_over and not state.is_terminal:
            yield f"startup: {startup_text(state.startup, self.now)}"
        if state.stall is not None:
            yield style.apply_color(f"stalled: {no_progress_text(state)}", "red")
        slow = stragglers(self.slow)
        if slow:
            named = ", ".join(f"{rank} ({self.slow[rank]:.1f}x)" for rank in slow[:_NAMED])
            more = f" and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
            yield style.apply_color(
                f"stragglers: rank {named}{more}: busy longer than the median, and waited for", "red"
            )
        if state.silent and state.ranks:
            named = ", ".join(state.silent[:_NAMED])
            more = f" and {len(state.silent) - _NAMED} more" if len(state.silent) > _NAMED else ""
            yield style.apply_color(f"silent: {named}{more}", "yellow")

    def _facts(self) -> Iterator[tuple[str, str]]:
        state, seconds = self.state, step_seconds(self.state.ranks)
        yield "throughput", _value_with_sparkline(state.throughput, "samples/s", self.throughput)
        yield "step", _value_with_sparkline(seconds, "s", self.step_time)
        yield "loss", number(state.loss) if state.loss is not None else ""
        yield "goodput", percent(state.goodput) if state.goodput is not None else ""
        yield "world", str(state.world_size) if state.world_size is not None else ""
        yield "restarts", restarts_text(state)

    def _ranks(self, style: Style, room: int | None) -> list[str]:
        rows, missing = rows_of(self.state.ranks, self.slow, room)
        lines = table(rows, self.now, style)
        if missing:
            lines.append(style.apply_color(f"and {missing} more that do better; a higher window shows more", "dim"))
        return lines


def _value_with_sparkline(value: float | None, unit: str, spark: str) -> str:
    return "" if value is None else f"{number(value)} {unit} {spark}".rstrip()
