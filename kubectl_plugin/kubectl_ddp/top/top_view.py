"""View of a job at one moment: progress, stragglers and ranks. Pure: equal input gives equal lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kubectl_ddp.status.describe import no_progress_text, progress_text, restarts_text, startup_text, values_text
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.job_tables import state_cell
from kubectl_ddp.status.stragglers import stragglers
from kubectl_ddp.top.drawing import LEGEND, curve, cut
from kubectl_ddp.top.rate_window import step_seconds
from kubectl_ddp.top.rows import rows_of, table
from kubectl_ddp.util.text_table import Style, number, percent

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
