"""Text formatting of tables, colors and durations. Pure functions that return text; nothing is printed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.common.safe_text.control_chars import escape_control_chars
from kubectl_ddp.backends.base import Queued
from kubectl_ddp.status.job_state import JobState, Nodes, State
from kubectl_ddp.status.rank_status import RankActivity, RankState

NOTHING: Final = "-"
"""Placeholder for an unknown value."""

_GAP: Final = 3
_NARROWEST: Final = 12
"""Minimum width to which a column is truncated."""

_COLORS: Final[Mapping[str, str]] = {"green": "32", "yellow": "33", "red": "31", "dim": "2", "bold": "1"} | {
    "on red": "30;41",
    "on green": "30;42",
    "on yellow": "30;43",
    "on blue": "37;44",
    "on magenta": "30;45",
    "on cyan": "30;46",
    "on white": "30;47",
}
COLOR_CODES: Final = frozenset(_COLORS.values())
"""Codes that :meth:`Style.apply_color` may write between ``ESC [`` and ``m``."""
_STATE_COLORS: Final[Mapping[State, str]] = {
    State.RUNNING: "green",
    State.SUCCEEDED: "green",
    State.STARTING: "yellow",
    State.RESTARTING: "yellow",
    State.PENDING: "yellow",
    State.QUEUED: "yellow",
    State.SUSPENDED: "dim",
    State.DELETING: "dim",
    State.FAILED: "red",
    State.LOST: "red",
}
RANK_COLORS: Final[Mapping[RankActivity, str]] = {
    RankActivity.UP: "green",
    RankActivity.STOPPED: "yellow",
    RankActivity.AWAITED: "red",
    RankActivity.DOWN: "red",
}


@dataclass(frozen=True, slots=True)
class Style:
    """Display capabilities of the output."""

    color: bool = False
    width: int | None = None
    """Columns of the terminal; None for a pipe, where nothing is truncated."""
    unicode: bool = True
    """True if the output supports characters beyond ASCII, such as blocks and the ellipsis."""

    def apply_color(self, text: str, color: str) -> str:
        """Return the text in a color if colors are enabled. The text must be unambiguous without its color."""
        text = escape_control_chars(text)
        return f"\033[{_COLORS[color]}m{text}\033[0m" if self.color and text and color in _COLORS else text


@dataclass(frozen=True, slots=True)
class Cell:
    """One field of a table."""

    text: str
    color: str = ""
    spans: tuple[Cell, ...] = ()
    """Pieces of the text, each with its own color."""

    def __post_init__(self) -> None:
        """Escape control characters, which would reach the terminal and break the column widths."""
        object.__setattr__(self, "text", escape_control_chars(self.text))

    def styled(self, style: Style, width: int) -> str:
        """Return the text in its colors, truncated to ``width`` columns."""
        if len(self.text) > width:
            return style.apply_color(self.text[: width - 1] + ("…" if style.unicode else "~"), self.color)
        return "".join(style.apply_color(span.text, span.color) for span in self.spans or (self,))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header, as kubectl prints them."""

    header: Sequence[str]
    rows: list[Sequence[Cell]] = field(default_factory=list)

    def render(self, style: Style) -> str:
        """Return the lines of the table. If it exceeds the width of the terminal, the widest columns are truncated."""
        columns = range(len(self.header))
        widths = [max([len(self.header[at]), *(len(row[at].text) for row in self.rows)]) for at in columns]
        if style.width is not None:
            widths = _fit_widths(widths, self.header, style.width)
        lines = [_line([Cell(word, "bold") for word in self.header], widths, style)]
        lines += [_line(row, widths, style) for row in self.rows]
        return "\n".join(lines)


def _fit_widths(widths: list[int], header: Sequence[str], limit: int) -> list[int]:
    widths = list(widths)
    least = [max(len(word), min(_NARROWEST, width)) for word, width in zip(header, widths, strict=True)]
    while sum(widths) + _GAP * (len(widths) - 1) > limit:
        at = max(range(len(widths)), key=lambda index: widths[index] - least[index])
        if widths[at] <= least[at]:
            break
        widths[at] -= 1
    return widths


def _line(cells: Sequence[Cell], widths: Sequence[int], style: Style) -> str:
    parts = []
    for cell, width in zip(cells, widths, strict=True):
        parts.append(cell.styled(style, width) + " " * max(0, width - len(cell.text)))
    return (" " * _GAP).join(parts).rstrip()


def duration(seconds: float | None) -> str:
    """Format a duration as kubectl does.

    >>> [duration(each) for each in (None, 0.4, 7, 119, 600, 7300, 90_000, 1_000_000)]
    ['-', '0s', '7s', '119s', '10m', '121m', '25h', '11d']
    """
    if seconds is None:
        return NOTHING
    for limit, size, unit in ((120, 1, "s"), (7_380, 60, "m"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86_400)}d"


def number(value: float | None, *, digits: int = 4) -> str:
    """Format a number with ``digits`` significant digits; large numbers keep all digits before the decimal point.

    >>> [number(each) for each in (None, 0.012345, 3.0, 1234.5678, 98765.4)]
    ['-', '0.01235', '3', '1235', '98765']
    """
    if value is None:
        return NOTHING
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def count(value: int | None) -> str:
    """Format an integer."""
    return NOTHING if value is None else str(value)


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun.

    >>> pluralize(1, "rank"), pluralize(2, "rank"), pluralize(2, "process", "processes")
    ('1 rank', '2 ranks', '2 processes')
    """
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def percent(share: float | None) -> str:
    """Format a fraction of 1 as a percentage.

    >>> percent(0.4567), percent(None)
    ('45%', '-')
    """
    return NOTHING if share is None else f"{int(share * 100)}%"


def bounds(nodes: Nodes) -> str:
    """Format the requested number of nodes: ``2``, or ``1-4``."""
    return str(nodes.minimum) if nodes.minimum == nodes.maximum else f"{nodes.minimum}-{nodes.maximum}"


def state_cell(state: State) -> Cell:
    """Return a table cell with a state in its color."""
    return Cell(state, _STATE_COLORS[state])


def queue_text(queue: Queued | None) -> str:
    """Format the queue of a job and its position.

    >>> [queue_text(each) for each in (None, Queued("team", True), Queued("team", False, 3))]
    ['-', 'team', 'team #3']
    """
    if queue is None:
        return NOTHING
    return queue.name if queue.position is None else f"{queue.name} #{queue.position}"


def job_table(states: Sequence[JobState], now: float, *, wide: bool = False, namespaced: bool = False) -> Table:
    """Return a table with one row per job. It has a column for queues if any job is in one.

    ``namespaced`` adds a leading column for the namespace, for jobs of several namespaces.
    """
    has_queues = any(state.queue for state in states)
    has_results = any(result_text(state) != NOTHING for state in states)
    header = [
        *(("NAMESPACE",) if namespaced else ()),
        *("NAME", "STATE", *(("QUEUE",) if has_queues else ())),
        *("NODES", "STEP", "PROGRESS", "ETA", "THROUGHPUT", "RESTARTS", "DURATION", "AGE", "WHERE"),
        *(("RESULT",) if has_results else ()),
        *(("NAMESPACE",) if wide and not namespaced else ()),
        *(("WORLD", "GENERATION", "GOODPUT", "LOSS", "REASON") if wide else ()),
    ]
    rows: list[Sequence[Cell]] = []
    for state in states:
        space = [Cell(state.namespace or NOTHING)] if namespaced else []
        queue = [Cell(queue_text(state.queue))] if has_queues else []
        first, last = _job_row(state, now), _wide_row(state, namespaced=namespaced) if wide else []
        texts = [*first, *([result_text(state)] if has_results else []), *last]
        rows.append([*space, Cell(state.name), state_cell(state.state), *queue, *map(Cell, texts)])
    return Table(header, rows)


def result_text(state: JobState, *, most: int = 40) -> str:
    """Return the result of a finished job: its accuracy or loss, or the first error, in at most ``most`` characters."""
    if state.state is State.FAILED and state.first_error is not None:
        line = next(iter(state.first_error.message.splitlines()), "") or NOTHING
        return line if len(line) <= most else f"{line[: most - 3]}..."
    for name in ("accuracy", "loss"):
        value = (state.summary or {}).get(name)
        if isinstance(value, int | float):
            return f"{name} {number(value)}"
    return NOTHING


def _job_row(state: JobState, now: float) -> list[str]:
    nodes = state.nodes
    wanted = f"{nodes.ready}/{nodes.desired}"
    return [
        wanted if nodes.minimum == nodes.maximum else f"{wanted} ({bounds(nodes)})",
        count(state.step),
        percent(state.progress),
        duration(state.eta_seconds),
        NOTHING if state.throughput is None else f"{number(state.throughput)}/s",
        str(sum(state.restarts.values())),
        duration(state.duration(now)),
        duration(state.age_seconds(now)),
        state.where,
    ]


def _wide_row(state: JobState, *, namespaced: bool) -> list[str]:
    reason = state.first_error.message if state.first_error is not None else state.reason
    return [
        *([] if namespaced else [state.namespace or NOTHING]),
        count(state.world_size),
        count(state.generation),
        percent(state.goodput),
        number(state.loss),
        next(iter(reason.splitlines()), NOTHING),
    ]


def rank_table(state: JobState, now: float) -> Table:
    """Return a table with one row per rank, including its mesh position if the job has a layout."""
    has_places = any(rank.place for rank in state.ranks)
    mesh = ("MESH",) * has_places
    header = ("RANK", *mesh, "POD", "NODE", "STATE", "STEP", "SAMPLES/S", "PHASES", "LAST-SEEN")
    rows: list[Sequence[Cell]] = [_rank_row(rank, now, has_places=has_places) for rank in state.ranks]
    unknown = [Cell(NOTHING)] * len(("RANK", *mesh))
    rows += [
        [*unknown, Cell(pod), Cell(NOTHING), Cell("silent", "yellow"), *[Cell(NOTHING)] * 4] for pod in state.silent
    ]
    return Table(header, rows)


def _rank_row(rank: RankState, now: float, *, has_places: bool) -> list[Cell]:
    return [
        Cell(str(rank.rank)),
        *[Cell(rank.place or NOTHING)] * has_places,
        Cell(rank.pod),
        Cell(rank.node or NOTHING),
        Cell(rank.state, RANK_COLORS[rank.state]),
        Cell(count(rank.step)),
        Cell(number(rank.samples_per_second)),
        Cell(format_phases(rank) or NOTHING),
        Cell(NOTHING if rank.last_step is None else f"{duration(max(0.0, now - rank.last_step))} ago"),
    ]


def format_phases(rank: RankState, *, most: int = 3) -> str:
    """Format the longest phases of a step, with their shares."""
    by_share = sorted(rank.phases.items(), key=lambda item: -item[1])[:most]
    return " ".join(f"{phase} {percent(share)}" for phase, share in by_share if share >= 0.01)
