"""Text description of one job, as printed by ``status`` and ``top``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.constants import RestartCause
from ddp_trainer.common.time_classes import IN_POD
from kubectl_ddp.kube.objects import Queued
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.job_tables import bounds, granted_text, state_cell
from kubectl_ddp.status.rank_status import late_nodes
from kubectl_ddp.status.startup import Startup
from kubectl_ddp.status.termination_message import resize_count, restart_count
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import NOTHING, Style, duration, number, percent, pluralize


def resize_text(restarts: Mapping[str, int]) -> str:
    """Return the number of resizes of the worker group; empty without any."""
    count = resize_count(restarts)
    return pluralize(count, "resize") if count else ""


def _restarts_of_summary(restarts: Mapping[str, int]) -> str:
    return ", ".join(filter(None, (pluralize(restart_count(restarts), "restart"), resize_text(restarts))))


_SUMMARY: Final[Mapping[str, Callable[[Any], str]]] = {
    "accuracy": lambda value: f"accuracy {number(value)}",
    "steps": lambda value: pluralize(value, "step"),
    "samples_lost": lambda value: f"{pluralize(value, 'sample')} lost",
    "samples_repeated": lambda value: f"{value} repeated",
    "ranks_together": lambda value: f"no process group held all ranks, at most {value}",
    "restarts": _restarts_of_summary,
    "lost_steps": lambda value: f"{pluralize(value, 'step')} done again" if value else "no step done again",
    "goodput": lambda value: f"goodput {percent(value)}",
    "largest_badput": lambda value: f"most of the rest {value}".replace("_", " ") if value else "no badput",
    "seconds": lambda value: f"{duration(value)} in all",
}
"""Key of a summary → its text, in the order of the summary line. ``-o json`` has all keys."""
_MOST_OUTSIDE: Final = 8


def header(state: JobState, now: float, style: Style) -> str:
    """Return the header lines of a job: state, progress and errors."""
    facts = list(_facts(state, now, style))
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name + ':':<{width + 2}}{text}" for name, text in facts if text)


def _facts(state: JobState, now: float, style: Style) -> Iterator[tuple[str, str]]:
    cell = state_cell(state.state)
    yield "Name", state.name
    yield "Status", style.apply_color(cell.text, cell.color)
    yield "Reason", state.reason
    if state.stall is not None:
        yield "Stalled", style.apply_color(no_progress_text(state), "red")
    if state.queue is not None:
        yield "Queue", queue_place(state.queue)
    yield "Where", state.where + (f", namespace {state.namespace}" if state.namespace else "")
    nodes = state.nodes
    yield "Pods", f"{nodes.ready} ready of {nodes.desired} (asked for {bounds(nodes)})"
    outside = [node.describe(now) for node in late_nodes(state.outside, now)]
    more = f" and {len(outside) - _MOST_OUTSIDE} more" if len(outside) > _MOST_OUTSIDE else ""
    yield "Outside", style.apply_color("; ".join(outside[:_MOST_OUTSIDE]) + more, "yellow") if outside else ""
    yield "Granted", granted_text(nodes) if nodes.shortage else ""
    yield "Spares", f"{nodes.spares_ready} ready of {nodes.spares}" if nodes.spares else ""
    if state.world_size is not None:
        formed = f", generation {state.generation}" if state.generation is not None else ""
        yield "World", f"{pluralize(state.world_size, 'rank')}{formed}"
    yield "Progress", progress_text(state)
    startup = state.startup
    if state.is_unresponsive:
        yield "Metrics", f"no pod returns any; '{program()} why {state.name}{location_flags()}' names causes"
        startup = None if startup is not None and startup.current in IN_POD else startup
    yield "Startup", startup_text(startup, now, state.finished) if startup is not None else ""
    yield "Throughput", f"{number(state.throughput)} samples/s" if state.throughput is not None else ""
    yield "Loss", number(state.loss) if state.loss is not None else ""
    yield "Values", values_text(state.values)
    yield "Restarts", restarts_text(state)
    if state.early_failures is not None:
        yield "Failing", style.apply_color(str(state.early_failures), "red")
    yield "Age", _age_text(state, now)
    if state.summary is not None:
        yield "Summary", summary_text(state.summary)
    error = state.first_error
    if error is not None:
        yield "First error", style.apply_color(f"{error.location}: {error.message}", "red")


def queue_place(queue: Queued) -> str:
    """Return the queue of a job, and its position unless Kueue has admitted it."""
    if queue.is_admitted:
        return f"{queue.name}, admitted"
    if queue.is_held:
        return f"{queue.name}, held back until it is resumed"
    if queue.position is None:
        return f"{queue.name}, waits to be admitted"
    before = queue.position - 1
    return f"{queue.name}, waits to be admitted as number {queue.position}" + (
        f", with {before} before it" if before else ", the next"
    )


def progress_text(state: JobState) -> str:
    """Return the progress of a job: step, epoch, share of the planned steps, remaining time."""
    if state.step is None:
        return ""
    planned = f" of {state.steps_planned}" if state.steps_planned else ""
    share = f" ({percent(state.progress)})" if state.progress is not None else ""
    epoch = f", epoch {state.epoch}" if state.epoch is not None else ""
    eta = f", {format_estimate(state.eta_seconds)} to go" if state.eta_seconds and not state.is_terminal else ""
    return f"step {state.step}{planned}{share}{epoch}{eta}"


def values_text(values: Mapping[str, float]) -> str:
    """Return the values that a script has reported by ``attach.log()``."""
    return ", ".join(f"{name} {number(value)}" for name, value in values.items())


def format_estimate(seconds: float) -> str:
    """Format an estimated duration with the precision of an estimate.

    >>> [format_estimate(each) for each in (3.2, 44, 90, 400, 5000, 90_000, 1_000_000)]
    ['about 5s', 'about 45s', 'about 90s', 'about 7m', 'about 83m', 'about 25h', 'about 12d']
    """
    unit = next((size for limit, size in ((100, 5), (7_200, 60), (172_800, 3_600)) if seconds < limit), 86_400)
    return f"about {duration(max(1, round(seconds / unit)) * unit)}"


def startup_text(startup: Startup, now: float, finished: float | None = None) -> str:
    """Return the time from the submission to the first step, or until the end or now, with the time of each phase."""
    spent = startup.elapsed_seconds(now if finished is None else finished)
    phases = ", ".join(f"{phase.replace('_', ' ')} {seconds:.1f}s" for phase, seconds in spent.items())
    total = f"{sum(spent.values()):.1f}s"
    if startup.current is None:
        return f"{total} from submission to the first step: {phases}"
    if finished is not None:
        return f"{total} from submission to the end, without a step: {phases}"
    return f"{startup.current.replace('_', ' ')} since {spent[startup.current]:.1f}s, submitted {total} ago: {phases}"


def no_progress_text(state: JobState) -> str:
    """Return the time without progress and the rank that the others wait for; empty while the ranks make progress."""
    if state.stall is None:
        return ""
    waits = "all ranks wait in one collective"
    if state.stall.rank is not None:
        pod = next((rank.pod for rank in state.ranks if rank.rank == state.stall.rank), "")
        waits = f"the others wait for rank {state.stall.rank}{f' on {pod}' if pod else ''}"
    return f"no progress for {duration(state.stall.seconds)}, {waits}"


def restarts_text(state: JobState) -> str:
    """Return the number of restarts with their causes, and of resizes; ``-`` if torchrun counts them alone."""
    if state.uses_torchrun and not state.restarts:
        return NOTHING
    causes, resizes = restarts_by_cause(state.restarts), resize_text(state.restarts)
    text = f"{restart_count(state.restarts)}" + (f" ({causes})" if causes else "")
    return ", ".join(filter(None, (text, resizes)))


def restarts_by_cause(restarts: Mapping[str, int]) -> str:
    """Return the causes of restarts, each with its number."""
    known = sorted((cause, count) for cause, count in restarts.items() if cause != RestartCause.RESIZE)
    return ", ".join(f"{cause} {count}" for cause, count in known)


def _age_text(state: JobState, now: float) -> str:
    if state.finished is None or state.created is None:
        return duration(state.age_seconds(now))
    return f"{duration(state.age_seconds(now))}, ended after {duration(state.duration(now))}"


def summary_text(summary: Mapping[str, Any], keys: Collection[str] = _SUMMARY) -> str:
    """Return the summary of a finished run as one line. Values of unexpected types are skipped, as any program may
    write them.

    Args:
        summary: Values by key.
        keys: Keys to show, in the order of the summary line.
    """
    texts = []
    for key, text in ((key, text) for key, text in _SUMMARY.items() if key in keys):
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            texts += [text(summary[key])] if summary.get(key) is not None else []
    return ", ".join(texts)


def why_no_ranks(state: JobState) -> str:
    """Return the reason why no rank can be shown."""
    if state.nodes.ready == 0:
        return "no pod of the job runs."
    if state.uses_torchrun:
        return "the launcher of the job is torchrun; with runtimeImage, its ranks report (docs/cluster.md)."
    return "they have only just started, or the script reports nothing; docs/metrics.md shows how it can."
