"""Jobs and ranks as tables, and as versioned JSON for ``-o json``. Pure functions that return text.

The JSON is a stable interface for scripts. Units are in the names; times are Unix times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, Final

from kubectl_ddp.kube.objects import Queued, timestamp
from kubectl_ddp.status.job_state import JobState, Nodes, State
from kubectl_ddp.status.rank_status import OutsideNode, RankActivity, RankState, late_nodes
from kubectl_ddp.status.termination_message import restart_count
from kubectl_ddp.util.text_table import NOTHING, Cell, Table, count, duration, number, percent

API_VERSION: Final = "cli.ddp/v1"


def job_to_dict(state: JobState) -> dict[str, Any]:
    """Return the JSON of one job."""
    fields = {"metadata": _metadata(state)} | asdict(replace(state, ranks=()), dict_factory=_plain)
    fields["ranks"] = [_rank(rank) for rank in state.ranks]
    fields["progress"] = state.progress
    return {"apiVersion": API_VERSION, "kind": "JobState", **fields}


def _metadata(state: JobState) -> dict[str, Any]:
    """Return name, namespace, uid and creation time where tools for Kubernetes objects expect them."""
    return {
        "name": state.name,
        "namespace": state.namespace,
        "uid": state.uid,
        "creationTimestamp": timestamp(state.created),
    }


def _rank(rank: RankState) -> dict[str, Any]:
    """Return the JSON of one rank. ``asdict`` on thousands of ranks takes as long as querying them."""
    return _plain([(name, getattr(rank, name)) for name in RankState.__dataclass_fields__])


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert enum values to strings, which the YAML writer requires."""
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in items}


def job_list_to_dict(states: Sequence[JobState]) -> dict[str, Any]:
    """Return the JSON of several jobs."""
    return {"apiVersion": API_VERSION, "kind": "JobStateList", "items": [job_to_dict(state) for state in states]}


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


def bounds(nodes: Nodes) -> str:
    """Format the requested number of nodes, and of spares: ``2``, ``1-4``, or ``1-4+1``."""
    size = str(nodes.minimum) if nodes.minimum == nodes.maximum else f"{nodes.minimum}-{nodes.maximum}"
    return f"{size}+{nodes.spares}" if nodes.spares else size


def granted_text(nodes: Nodes) -> str:
    """Format the granted and the wanted number of nodes, with the reason if fewer are granted.

    >>> granted_text(Nodes(0, 2, 2, 2, granted=0, wanted=2, shortage="waits for quota"))
    '0 of 2: waits for quota'
    """
    return f"{nodes.granted} of {nodes.wanted}: {nodes.shortage}" if nodes.shortage else NOTHING


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
    """Return a table with one row per job. It has a column for queues if any job is in one, and a column for the
    granted size if any job has fewer nodes than it wants.

    ``namespaced`` adds a leading column for the namespace, for jobs of several namespaces.
    """
    has_queues = any(state.queue for state in states)
    has_shortage = any(state.nodes.shortage for state in states)
    has_results = any(result_text(state, now) != NOTHING for state in states)
    header = [
        *(("NAMESPACE",) if namespaced else ()),
        *("NAME", "STATUS", *(("QUEUE",) if has_queues else ())),
        *(
            "READY",
            *(("GRANTED",) if has_shortage else ()),
            "STEP",
            "PROGRESS",
            "ETA",
            "THROUGHPUT",
            "RESTARTS",
            "DURATION",
            "AGE",
            "WHERE",
        ),
        *(("RESULT",) if has_results else ()),
        *(("NAMESPACE",) if wide and not namespaced else ()),
        *(("WORLD", "GENERATION", "GOODPUT", "LOSS", "REASON") if wide else ()),
    ]
    rows: list[Sequence[Cell]] = []
    for state in states:
        space = [Cell(state.namespace or NOTHING)] if namespaced else []
        queue = [Cell(queue_text(state.queue))] if has_queues else []
        ready, *first = _job_row(state, now)
        first = [ready, *([granted_text(state.nodes)] if has_shortage else []), *first]
        last = _wide_row(state, now, namespaced=namespaced) if wide else []
        texts = [*first, *([result_text(state, now)] if has_results else []), *last]
        rows.append([*space, Cell(state.name), state_cell(state.state), *queue, *map(Cell, texts)])
    return Table(header, rows)


def result_text(state: JobState, now: float, *, most: int = 40) -> str:
    """Return the result of a finished job: its accuracy or loss, or the first error, in at most ``most`` characters.

    Of a running job that fails before its first step again and again, it is the number of failures; of one with nodes
    outside of its group, these nodes and why.
    """
    if state.state is State.FAILED and state.first_error is not None:
        line = next(iter(state.first_error.message.splitlines()), "") or NOTHING
        return line if len(line) <= most else f"{line[: most - 3]}..."
    if state.early_failures is not None:
        return f"{state.early_failures.count} failures, no step"
    if outside := _faulty_nodes(state, now):
        who = outside[0].pod if len(outside) == 1 else f"{len(outside)} nodes"
        return f"{who} outside: {outside[0].short_reason}"
    if "ranks_together" in (state.summary or {}):
        return "ranks were apart"
    for name in ("accuracy", "loss"):
        value = (state.summary or {}).get(name)
        if isinstance(value, int | float):
            return f"{name} {number(value)}"
    return NOTHING


def _faulty_nodes(state: JobState, now: float) -> list[OutsideNode]:
    return [node for node in late_nodes(state.outside, now) if node.is_fault]


def _job_row(state: JobState, now: float) -> list[str]:
    nodes = state.nodes
    wanted = f"{nodes.ready}/{nodes.desired}"
    return [
        wanted if nodes.minimum == nodes.maximum and not nodes.spares else f"{wanted} ({bounds(nodes)})",
        count(state.step),
        percent(state.progress),
        duration(state.eta_seconds),
        NOTHING if state.throughput is None else f"{number(state.throughput)}/s",
        NOTHING if state.uses_torchrun and not state.restarts else str(restart_count(state.restarts)),
        duration(state.duration(now)),
        duration(state.age_seconds(now)),
        state.where,
    ]


def _wide_row(state: JobState, now: float, *, namespaced: bool) -> list[str]:
    outside = "; ".join(node.describe(now) for node in _faulty_nodes(state, now))
    reason = state.first_error.message if state.first_error is not None else str(state.early_failures or outside)
    return [
        *([] if namespaced else [state.namespace or NOTHING]),
        count(state.world_size),
        count(state.generation),
        percent(state.goodput),
        number(state.loss),
        next(iter((reason or state.reason).splitlines()), NOTHING),
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
