"""State of a job: :class:`JobState` from Kubernetes objects and metrics. Pure functions, the same for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from ddp_trainer.common.constants import GroupState
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.common.time_classes import IN_POD
from kubectl_ddp.errors import DdpError, InfrastructureFailed, JobFailed
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Queued, Snapshot, condition_of, epoch, main_status
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.job_progress import (
    EarlierPods,
    EarlyFailures,
    find_early_failures,
    granted_size,
    progress_fields,
)
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.status.rank_status import (
    OutsideNode,
    RankActivity,
    RankState,
    StalledGroup,
    find_outside_nodes,
    find_stalled_group,
    rank_states,
)
from kubectl_ddp.status.termination_message import FirstError, Summary
from kubectl_ddp.util.process import location_flags, program

if TYPE_CHECKING:
    from kubectl_ddp.status.startup import Startup

__all__ = ["FirstError", "JobState", "Nodes", "RankActivity", "RankState", "State", "failure", "job_state"]

ENGINE_LOST: Final = "EngineLost"
"""Reason of the condition Failed if the local engine has died."""


class State(StrEnum):
    """State of a job, in one word."""

    PENDING = "Pending"
    """No pod is running yet."""
    STARTING = "Starting"
    """Pods are running, and the ranks have not completed the first rendezvous."""
    RUNNING = "Running"
    RESTARTING = "Restarting"
    """The worker group re-forms after a failure or a resize."""
    QUEUED = "Queued"
    """The job waits in a queue of Kueue, without pods."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"
    """The local engine died. The job can be resumed from its last checkpoint, or deleted."""
    DELETING = "Deleting"


WITH_RANKS: Final = frozenset({State.RUNNING, State.STARTING, State.RESTARTING})
TERMINAL: Final = frozenset({State.SUCCEEDED, State.FAILED, State.LOST})


@dataclass(frozen=True, slots=True)
class Nodes:
    """Number of worker pods of a job."""

    ready: int
    desired: int
    """Requested pods, spares included."""
    minimum: int
    maximum: int
    granted: int | None = None
    """Nodes that have quota and a machine; None if the job has ended."""
    wanted: int | None = None
    """Nodes that the job would have with enough quota and machines; None if the job has ended."""
    shortage: str = ""
    """Why fewer nodes are granted than wanted, in a few words."""
    spares: int = 0
    """Spares with which the job was submitted. There are fewer if it has fewer pods."""
    spares_ready: int = 0
    """Pods that wait as spares."""

    @property
    def training(self) -> int:
        """Requested number of pods whose ranks train."""
        return min(self.desired, self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """State of one job at one moment. Unknown values are None."""

    name: str
    namespace: str
    where: str
    uid: str
    state: State
    reason: str
    """One sentence: the cause of the state."""
    nodes: Nodes
    uses_torchrun: bool = False
    """True if torchrun starts the ranks, so that their metrics and restarts are not known."""
    processes_per_node: int = 1
    step: int | None = None
    steps_planned: int | None = None
    epoch: int | None = None
    loss: float | None = None
    learning_rate: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    """Values that the script reports under names of its own."""
    throughput: float | None = None
    """Samples per second of all ranks. Ranks that were not scraped are assumed to be as fast as the others."""
    eta_seconds: float | None = None
    goodput: float | None = None
    """Share of the job's lifetime spent on training that counts, 0 to 1."""
    world_size: int | None = None
    """Number of processes of the worker group."""
    generation: int | None = None
    """Number of times that the group has formed."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by cause, over the whole run."""
    was_suspended: bool = False
    """True if a suspension has stopped earlier pods of the job."""
    created: float | None = None
    """Creation time as Unix time."""
    started: float | None = None
    finished: float | None = None
    ranks: tuple[RankState, ...] = ()
    stall: StalledGroup | None = None
    silent: tuple[str, ...] = ()
    """Running worker pods that returned no metrics."""
    outside: tuple[OutsideNode, ...] = ()
    """Nodes that run and are in no worker group."""
    first_error: FirstError | None = None
    early_failures: EarlyFailures | None = None
    """Failures of a running job that has not stepped."""
    failed_ranks: tuple[int, ...] = ()
    """Ranks that are known to have failed."""
    summary: dict[str, Any] | None = None
    queue: Queued | None = None
    """Position in a queue of Kueue."""
    startup: Startup | None = None
    """Seconds of each phase from the submission to the first step, and the current phase until then."""

    @property
    def is_terminal(self) -> bool:
        """True if the job has ended and does not continue by itself."""
        return self.state in TERMINAL

    @property
    def progress(self) -> float | None:
        """Share of the planned steps that are committed, 0 to 1."""
        if self.step is None or not self.steps_planned:
            return None
        return min(1.0, self.step / self.steps_planned)

    @property
    def is_unresponsive(self) -> bool:
        """True if pods run and none returns metrics: they have just started, or are unreachable."""
        return bool(self.silent) and self.world_size is None

    @property
    def max_ranks(self) -> int:
        """Maximum number of ranks at the largest size of the job."""
        return self.nodes.maximum * self.processes_per_node

    def age_seconds(self, now: float) -> float | None:
        """Return the seconds since the job was created."""
        return max(0.0, now - self.created) if self.created is not None else None

    def duration(self, now: float) -> float | None:
        """Return the seconds from start to end, or until now if the job has not ended; None if it has not started."""
        begun = self.created if self.started is None and self.finished is not None else self.started
        return max(0.0, (now if self.finished is None else self.finished) - begun) if begun is not None else None


@dataclass(frozen=True, slots=True)
class _Facts:
    """Inputs of the decision on the state."""

    conditions: Mapping[str, Mapping[str, Any]]
    """Conditions that are true, by type."""
    is_deleting: bool
    is_to_be_suspended: bool
    waits_in_queue: bool
    is_held_in_queue: bool
    running_pods: int
    group_states: frozenset[str]
    has_restarted: bool

    def is_lost(self) -> bool:
        return self.conditions.get("Failed", {}).get("reason") == ENGINE_LOST

    def is_in_rendezvous(self) -> bool:
        """True if the pods report the state of their groups, and none of them trains."""
        return bool(self.group_states) and not self.group_states & _FORMED


_FORMED: Final = frozenset({GroupState.RUNNING, GroupState.SUCCEEDED, GroupState.SPARE})
"""States of pods of a job whose group has formed."""

_DECISION: Final[tuple[tuple[State, Callable[[_Facts], bool]], ...]] = (
    (State.DELETING, lambda facts: facts.is_deleting),
    (State.LOST, _Facts.is_lost),
    (State.SUCCEEDED, lambda facts: "Succeeded" in facts.conditions),
    (State.FAILED, lambda facts: "Failed" in facts.conditions),
    (State.QUEUED, lambda facts: facts.waits_in_queue),
    (State.SUSPENDED, lambda facts: facts.is_held_in_queue),
    # A job that was resumed is not suspended, even if the operator has not processed the change yet.
    (State.SUSPENDED, lambda facts: "Suspended" in facts.conditions and facts.is_to_be_suspended),
    (State.RESTARTING, lambda facts: facts.is_in_rendezvous() and facts.has_restarted),
    (State.RESTARTING, lambda facts: "Restarting" in facts.conditions),
    (State.PENDING, lambda facts: facts.running_pods == 0),
    (State.STARTING, lambda facts: facts.is_in_rendezvous() or "Running" not in facts.conditions),
    (State.RUNNING, lambda _: True),
)
"""States with their rules. The first rule that holds determines the state."""


def job_state(
    snapshot: Snapshot,
    samples: Mapping[str, Samples],
    *,
    where: str = "",
    before: Mapping[str, Samples] | None = None,
    with_startup: bool = True,
) -> JobState:
    """Return the state of a job.

    Args:
        snapshot: The job and its pods.
        samples: Name of a pod → its metrics. Pods without an answer are missing.
        where: Place in which the job runs.
        before: Samples of an earlier scrape. With it, rates are averages over the time between the scrapes.
        with_startup: False to leave out the phases of the start, which take 20 µs per pod.
    """
    job, workers = snapshot.job, termination_message.workers(snapshot.pods)
    nodes_of = {str(pod["metadata"]["name"]): str(pod["spec"].get("nodeName", "")) for pod in workers}
    worker_samples = {pod: of_pod for pod, of_pod in samples.items() if pod in nodes_of}
    counted = _restarts(worker_samples, workers)
    facts = _facts(snapshot, workers, worker_samples, counted)
    state = next(state for state, holds in _DECISION if holds(facts))
    stall = find_stalled_group(worker_samples) if state in WITH_RANKS else None
    ranks = rank_states(worker_samples, nodes_of, before, awaited=stall.rank if stall else None)
    has_succeeded = state is State.SUCCEEDED
    is_over = has_succeeded or state is State.FAILED
    summary = termination_message.outcome(job, workers, has_succeeded=has_succeeded) if is_over else None
    error = _first_error(state, job, workers)
    progress = progress_fields(worker_samples, ranks, summary, has_succeeded=has_succeeded)
    uses_torchrun = job_kinds.uses_torchrun(job)
    earlier, uids = EarlierPods.of(job), {str(pod["metadata"].get("uid")) for pod in workers}
    step = progress["step"]
    is_without_pods = state is State.SUSPENDED and step is None
    progress["step"] = earlier.step if is_without_pods else earlier.total_step(step, uids)
    running = {str(pod["metadata"]["name"]) for pod in workers if _runs(pod)}
    status = job.get("status") or {}
    return JobState(
        name=str(job["metadata"]["name"]),
        namespace=str(job["metadata"].get("namespace", "")),
        where=where,
        uid=str(job["metadata"].get("uid", "")),
        state=state,
        reason=_reason(state, facts, [*workers, *termination_message.stores(snapshot.pods)]),
        nodes=_nodes(job, workers, worker_samples, snapshot.queued, is_over=state in TERMINAL),
        uses_torchrun=uses_torchrun,
        processes_per_node=job_kinds.processes_per_node(job),
        restarts=earlier.total_restarts(counted or termination_message.restarts_of(summary or {}), uids),
        was_suspended=bool(earlier.uid) and earlier.uid not in uids,
        created=epoch(job["metadata"].get("creationTimestamp")),
        started=_started(job, facts, earlier),
        finished=_finished(status, facts) if state in TERMINAL else None,
        ranks=ranks,
        stall=stall,
        silent=() if uses_torchrun else tuple(sorted(running - worker_samples.keys())),
        outside=find_outside_nodes(worker_samples, {pod: group_state(of_pod) for pod, of_pod in worker_samples.items()})
        if state in WITH_RANKS
        else (),
        first_error=error,
        failed_ranks=termination_message.failed_ranks(error, workers),
        startup=_startup(snapshot, workers, worker_samples, summary, state) if with_startup else None,
        summary=summary,
        queue=snapshot.queued,
        early_failures=find_early_failures(worker_samples, counted, step) if state in WITH_RANKS else None,
        **progress,
    )


def _startup(
    snapshot: Snapshot, workers: list[Object], samples: Mapping[str, Samples], summary: Summary | None, state: State
) -> Startup | None:
    """Return the start of a job. A start that is over is also added to the summary."""
    from kubectl_ddp.status.startup import startup  # noqa: PLC0415 - a list of jobs does not need it

    job = snapshot.job
    is_suspended = state is State.SUSPENDED or (state is not State.QUEUED and job_kinds.is_suspend_requested(job))
    started = startup(job, workers, samples, snapshot.events, summary, is_suspended=is_suspended)
    if started is None or (started.current in IN_POD and job_kinds.uses_torchrun(job)):
        return None  # under torchrun, nothing measures the phases in the pod
    if summary is not None and started.is_over:
        summary["startup"] = started.to_summary()
    return started


def _first_error(state: State, job: Object, workers: list[Object]) -> FirstError | None:
    """Return the first error. A running job has recovered from an error that only the annotation keeps, so it is not
    shown.
    """
    if state is State.SUCCEEDED:
        return None
    return (
        termination_message.first_error(workers)
        if state is State.RUNNING
        else termination_message.resolve_first_error(job, workers)
    )


def _facts(
    snapshot: Snapshot, workers: list[Object], samples: Mapping[str, Samples], counted: Mapping[str, int]
) -> _Facts:
    job, queue = snapshot.job, snapshot.queued
    return _Facts(
        conditions=job_kinds.conditions(job),
        is_deleting="deletionTimestamp" in job["metadata"],
        is_to_be_suspended=job_kinds.is_suspend_requested(job),
        waits_in_queue=queue is not None and not queue.is_admitted and not queue.is_held,
        is_held_in_queue=queue is not None and queue.is_held,
        running_pods=sum(_runs(pod) for pod in workers),
        group_states=frozenset(state for of_pod in samples.values() if (state := group_state(of_pod))),
        has_restarted=any(counted.values()) or any(main_status(pod).get("restartCount") for pod in workers),
    )


def group_state(samples: Samples) -> str:
    """Return the state of a pod's worker group (:class:`~ddp_trainer.common.constants.GroupState`); empty if
    unknown.
    """
    states = samples.by(MetricLabel.STATE, Metric.GROUP_STATE)
    return next((state for state, value in states.items() if value == 1), "")


def _runs(pod: Object) -> bool:
    return "running" in (main_status(pod).get("state") or {})


def _nodes(
    job: Object, workers: Sequence[Object], pods: Mapping[str, Samples], queue: Queued | None, *, is_over: bool
) -> Nodes:
    ready = sum(_runs(pod) and bool(main_status(pod).get("ready")) for pod in workers)
    low, high = job_kinds.bounds(job)
    granted, wanted, shortage = (None, None, "") if is_over else granted_size(job, workers, queue)
    return Nodes(
        ready=ready,
        desired=job_kinds.desired_nodes(job),
        minimum=low,
        maximum=high,
        granted=granted,
        wanted=wanted,
        shortage=shortage,
        spares=job_kinds.spares(job),
        spares_ready=sum(group_state(samples) == GroupState.SPARE for samples in pods.values()),
    )


def _restarts(samples: Mapping[str, Samples], workers: Iterable[Object]) -> dict[str, int]:
    """Return restarts by cause. Every pod counts the whole run, so the maximum of all pods is correct."""
    counts = termination_message.restarts(workers)
    for of_pod in samples.values():
        for cause, count in of_pod.by(MetricLabel.CAUSE, Metric.RESTARTS).items():
            counts[cause] = max(counts.get(cause, 0), int(count))
    return {cause: count for cause, count in counts.items() if count}


_NO_REASON: Final[Mapping[State, str]] = {
    State.PENDING: "Its pods are not running yet.",
    State.STARTING: "Its pods run, and the ranks are finding one another.",
    State.RESTARTING: "Its worker group re-forms.",
    State.QUEUED: "It waits for quota.",
    State.SUSPENDED: "It waits to be resumed.",
    State.DELETING: "It is being deleted.",
}

_CONDITION_OF: Final[Mapping[State, str]] = {
    State.LOST: "Failed",
    State.SUCCEEDED: "Succeeded",
    State.FAILED: "Failed",
    State.SUSPENDED: "Suspended",
    State.RUNNING: "Running",
}


def _reason(state: State, facts: _Facts, pods: Iterable[Object]) -> str:
    if state in {State.PENDING, State.STARTING, State.RESTARTING}:
        held_up = [f"{pod['metadata']['name']}: {why}." for pod in pods if (why := _waits_for(pod))]
        if held_up:
            return held_up[0]
    condition = facts.conditions.get(_CONDITION_OF.get(state, ""), {})
    return _clean(condition.get("message")) or _NO_REASON.get(state, "")


def _waits_for(pod: Object) -> str:
    """Return why a pod does not run, in the words of Kubernetes; empty if unknown."""
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _clean(condition.get("message") or condition.get("reason")).rstrip(".")
    if how := termination_message.crash_message(pod):
        return how.rstrip(".")
    waiting = (main_status(pod).get("state") or {}).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in {"", "ContainerCreating", "PodInitializing"}:
        return ""
    return _clean(f"{reason}: {message}".rstrip(": ."))


def _clean(text: object) -> str:
    """Remove secrets and control characters: kubelets, operators and webhooks quote text of the job."""
    return clean_text(str(text)) if text else ""


def _started(job: Object, facts: _Facts, earlier: EarlierPods) -> float | None:
    """Return when the job started for the first time that is known; None if it has not started.

    A kind without a start time starts when it is resumed, or when it is created if it was never suspended.
    """
    if earlier.started is not None:
        return earlier.started
    if job_kinds.engine_of(job).has_start_time:
        return epoch(job_kinds.at(job, ("status", "startTime")))
    suspended = condition_of(job, "Suspended")
    if suspended.get("status") == "False":
        return epoch(suspended.get("lastTransitionTime"))
    has_run = facts.running_pods > 0 or not facts.conditions.keys().isdisjoint({"Running", "Succeeded", "Failed"})
    return epoch(job["metadata"].get("creationTimestamp")) if has_run else None


def _finished(status: Mapping[str, Any], facts: _Facts) -> float | None:
    ended = facts.conditions.get("Succeeded") or facts.conditions.get("Failed") or {}
    return epoch(status.get("completionTime") or ended.get("lastTransitionTime"))


def failure(state: JobState) -> DdpError:
    """Return the error with which a failed job is reported: :class:`JobFailed` or :class:`InfrastructureFailed`.

    The first error decides. Without one, the failure is attributed to the infrastructure.
    """
    error = state.first_error
    if error is None:
        return InfrastructureFailed(f"Job '{state.name}' failed: {_last_line(state.reason)}", hint=_hint(state))
    kind = JobFailed if error.is_users else InfrastructureFailed
    return kind(f"Job '{state.name}' failed: {error.location}: {error.first_line}", hint=_hint(state))


def _last_line(text: str) -> str:
    line = text.strip().splitlines()[-1] if text.strip() else "no reason given"
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _hint(state: JobState) -> str:
    if state.state is State.LOST:
        return f"'{program()} resume {state.name}{location_flags()}' continues from its last checkpoint."
    flag = "--first-error" if state.first_error is not None and state.first_error.stack else "--rank all"
    return f"'{program()} logs {state.name} {flag}{location_flags()}' shows more."
