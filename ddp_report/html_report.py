"""Report as one self-contained HTML file without network access. Only the tooltips need JavaScript.

Text of jobs is untrusted: the template escapes all of it, and a Content-Security-Policy allows only our own script.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup

from ddp_report.draw import STOPS, clock, duration, format_number, since, time_ticks
from ddp_report.job_report import Report, report_of, save_report
from ddp_report.plot_data import GROUPS, SHAPES, STYLE_OF, Heatmap, Plot, build_plots, heatmap, mark_events
from ddp_report.time_series import LOST, RankHistory
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.status.describe import progress_text, resize_text, restarts_by_cause, restarts_text, startup_text
from kubectl_ddp.status.job_state import State
from kubectl_ddp.status.timeline import WARNING
from kubectl_ddp.version import version

TEMPLATES: Final = Path(__file__).parent / "templates"

MOST_ROWS: Final = 2_000
"""Maximum number of rows of the table of ranks."""
OPEN_ROWS: Final = 64
"""Number of rows up to which the table is expanded on screen; in print it always is."""

STATE_CLASSES: Final[Mapping[State, str]] = {
    State.RUNNING: "good",
    State.SUCCEEDED: "good",
    State.FAILED: "bad",
    State.LOST: "bad",
    State.SUSPENDED: "still",
    State.DELETING: "still",
}
"""CSS class by state; ``busy`` for all others."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number at the top of the page."""

    name: str
    value: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """One rank on one pod."""

    rank: int
    pod: str
    node: str
    state: str
    steps: str
    seconds: str
    own: str
    waited: float | None
    """Share of its time in steps spent waiting, from 0 to 1."""


def render_html(report: Report) -> str:
    """Return the report as HTML."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"clock": clock, "percent": _percent, "place": _place, "svg": Markup}
    return made.get_template("report.html.j2").render(_view(report))


def write_report(backend: Backend, name: str, path: Path, warn: Callable[[str], None]) -> None:
    """Write the page of a job to a file that only its owner can read. Raises DdpError."""
    save_report(render_html(report_of(backend, name, warn=warn)), path)


def _view(report: Report) -> dict[str, Any]:
    numbers = report.measured
    drawn = build_plots(numbers, was_suspended=report.state.was_suspended) if numbers is not None else []
    heat = heatmap(numbers.ranks) if numbers is not None else None
    rows = list(_rows(report))
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    return {
        "report": report,
        "state": report.state,
        "state_class": STATE_CLASSES.get(report.state.state, "busy"),
        "reason": report.state.reason,
        "progress": progress_text(report.state),
        "tiles": list(_tiles(report)),
        "error": report.error,
        "timeline": numbers.timeline if numbers is not None else None,
        "times": time_ticks(numbers.timeline.start, numbers.timeline.end) if numbers is not None else [],
        "span": since(numbers.timeline.end - numbers.timeline.start) if numbers is not None else "",
        "part": duration(numbers.timeline.width) if numbers is not None else "",
        "marks": mark_events(report.changes, numbers.timeline) if numbers is not None else [],
        "shapes": SHAPES,
        "plots": drawn,
        "heat": heat,
        "spectrum": ", ".join(f"#{stop}" for stop in STOPS),
        "spent": list(_time_breakdown(report)),
        "spent_text": _time_breakdown_text(report),
        "start": list(_waterfall(report)),
        "start_text": startup_text(report.state.startup, report.made, report.state.finished)
        if report.state.startup is not None
        else "",
        "rows": rows[:MOST_ROWS],
        "rows_left_out": max(0, len(rows) - MOST_ROWS),
        "open_rows": OPEN_ROWS,
        "warning": WARNING,
        "style": Markup((TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - a file of ours
        "script": Markup(script),  # noqa: S704 - a file of ours
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "tooltips": _tooltip_json(drawn, heat, report),
        "version": version(),
    }


def _tiles(report: Report) -> Iterator[Tile]:
    state = report.state
    if report.throughput is not None:
        yield Tile("Throughput", format_number(report.throughput), "samples/s" + ("" if state.throughput else ", mean"))
    if report.loss is not None:
        yield Tile(
            "Loss",
            format_number(float(f"{report.loss:.3g}")),
            "on the test samples" if _is_of_test(report) else "training, last",
        )
    for name, value in report.evaluation_metrics.items():
        shown = _percent(value) if name == "accuracy" and value <= 1 else format_number(value)
        yield Tile(name.replace("_", " ").capitalize(), shown, "on the test samples")
    if state.step is not None:
        planned = f"of {state.steps_planned:,}".replace(",", " ") if state.steps_planned else ""
        yield Tile("Steps", f"{state.step:,}".replace(",", " "), planned)
    if state.world_size is not None:
        yield Tile("World size", str(state.world_size), "rank" if state.world_size == 1 else "ranks")
    yield from _outcome_tiles(report)


def _outcome_tiles(report: Report) -> Iterator[Tile]:
    """Yield what failures cost: restarts, samples, goodput and time."""
    state = report.state
    more = ", ".join(filter(None, (restarts_by_cause(state.restarts), resize_text(state.restarts))))
    yield Tile("Restarts", restarts_text(state).partition(" ")[0].strip(","), more)
    if samples := report.samples:
        (first, count), *others = samples.items()
        yield Tile(f"Samples {first}", str(count), ", ".join(f"{number} {name}" for name, number in others))
    if report.goodput is not None:
        yield Tile("Goodput", f"{report.goodput:.1%}", "of its time with pods")
    if state.created is not None:
        seconds = (state.age_seconds if state.finished is None else state.duration)(report.made)
        yield Tile("Age" if state.finished is None else "Duration", since(seconds or 0.0))


def _is_of_test(report: Report) -> bool:
    """Return True if the summary contains the loss on test samples."""
    return report.state.summary is not None and bool(report.state.summary.get("metrics"))


def _time_breakdown(report: Report) -> Iterator[dict[str, Any]]:
    """Yield states by group and duration. Lost time is subtracted from productive time."""
    spent = dict(report.seconds_by_state)
    lost = min(spent.get(LOST, 0.0), spent.get("productive", 0.0))
    if lost:
        spent["productive"] -= lost
    total = sum(spent.values())
    order = {style: at for at, style in enumerate(GROUPS)}
    known = [(STYLE_OF.get(state, "rest"), state, seconds) for state, seconds in spent.items() if seconds > 0]
    for style, state, seconds in sorted(known, key=lambda item: (order[item[0]], -item[2])):
        words = state.replace("_", " ")
        yield {"style": style, "name": words, "time": duration(seconds), "share": seconds / total}


def _time_breakdown_text(report: Report) -> str:
    shares = sorted(_time_breakdown(report), key=lambda one: -one["share"])
    return "; ".join(f"{one['name']} {one['time']} ({one['share']:.1%})" for one in shares)


def _waterfall(report: Report) -> Iterator[dict[str, Any]]:
    """Yield the phases of the start in order, each with its begin and its length as shares of all."""
    startup = report.state.startup
    spent = startup.elapsed_seconds(report.state.finished or report.made) if startup is not None else {}
    total, reached = sum(spent.values()), 0.0
    for phase, seconds in spent.items() if total > 0 else ():
        words = phase.replace("_", " ")
        yield {"name": words, "time": f"{seconds:.1f}s", "begin": reached / total, "share": seconds / total}
        reached += seconds


def _rows(report: Report) -> Iterator[RankRow]:
    known = {(one.rank, one.pod): one for one in report.state.ranks}
    past = {(one.rank, one.pod): one for one in (report.measured.ranks if report.measured is not None else ())}
    for rank, pod in sorted(known.keys() | past.keys()):
        now, before = known.get((rank, pod)), past.get((rank, pod))
        node = (now.node if now is not None else "") or report.nodes.get(pod, "")
        steps = before.steps if before is not None else None
        yield RankRow(
            rank=rank,
            pod=pod,
            node=node,
            state=str(now.state) if now is not None else "",
            steps=f"{steps:.0f}" if steps is not None else str(now.step if now and now.step is not None else ""),
            seconds=_a_step(before, before.seconds) if before is not None else _now(now),
            own=_a_step(before, before.seconds - before.waited) if before is not None else "",
            waited=before.waited / before.seconds if before is not None and before.seconds > 0 else None,
        )


def _a_step(past: RankHistory, seconds: float) -> str:
    return duration(max(0.0, seconds) / past.steps) if past.steps > 0 else ""


def _now(now: Any) -> str:
    return duration(now.seconds_per_step) if now is not None and now.seconds_per_step is not None else ""


def _tooltip_json(drawn: list[Plot], heat: Heatmap | None, report: Report) -> str:
    """Return the tooltip texts as JSON in which no text can end the script element."""
    if report.measured is None:
        return "{}"
    timeline = report.measured.timeline
    tooltips = {plot.id: dict(plot.tooltips) for plot in drawn}
    tooltips |= {"ranks": dict(heat.tooltips)} if heat is not None else {}
    times = [f"{since(moment - timeline.start)} · {clock(moment)} UTC" for moment in timeline.midpoints()]
    text = json.dumps({"times": times, "plots": tooltips}, separators=(",", ":"), ensure_ascii=True)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))  # noqa: S704 - escaped


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _place(share: float) -> str:
    """Format a share as a CSS length."""
    return f"{100 * share:.3f}%"
