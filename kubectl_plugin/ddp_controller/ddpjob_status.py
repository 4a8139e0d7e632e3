"""Status of a DDPJob, from the objects of its run. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.common.constants import Label, Role
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import queued
from kubectl_ddp.kube.objects import Object, Snapshot, condition_of, epoch, holds, timestamp
from kubectl_ddp.spec.fields import FIELDS
from kubectl_ddp.status.job_state import JobState, State, job_state
from kubectl_ddp.status.termination_message import restart_count

INVALID: Final = "Invalid"
"""Phase of a job that cannot be made."""
MOST_MESSAGE_CHARACTERS: Final = 2000
_OF_STATE: Final[Mapping[str, frozenset[State]]] = {
    "Queued": frozenset({State.QUEUED}),
    "Running": frozenset({State.RUNNING, State.RESTARTING}),
    "Suspended": frozenset({State.SUSPENDED}),
    "Succeeded": frozenset({State.SUCCEEDED}),
    "Failed": frozenset({State.FAILED, State.LOST}),
}
"""Condition → states in which it is true."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """Condition Valid."""

    status: str = "True"
    reason: str = "Accepted"
    message: str = ""


def is_over(job: Object) -> bool:
    """Return whether a DDPJob has succeeded or failed."""
    return any(holds(job, kind) for kind in ("Succeeded", "Failed"))


def is_suspended(job: Object) -> bool:
    """Return whether the specification of a DDPJob suspends it."""
    return bool((job.get("spec") or {}).get(job_kinds.SUSPEND))


def expires_at(job: Object) -> float | None:
    """Return the Unix time at which a finished DDPJob is to be deleted; None if it is kept."""
    ttl = (job.get("spec") or {}).get("ttl")
    ended = epoch((job.get("status") or {}).get("completionTime"))
    return None if ttl is None or ended is None else ended + int(FIELDS["ttl"].parse(ttl))


def status_without_run(job: Object, result: JobResult, now: float) -> Object:
    """Return the status of a DDPJob that has no root object yet."""
    state = State.SUSPENDED if is_suspended(job) and result.status == "True" else State.PENDING
    phase = INVALID if result.status == "False" else str(state)
    return {
        **(job.get("status") or {}),
        "observedGeneration": job["metadata"].get("generation", 0),
        "phase": phase,
        "conditions": _conditions(job, result, state, "", now),
    }


def status_of_run(job: Object, snapshot: Snapshot, result: JobResult, now: float) -> Object:
    """Return the status of a DDPJob with its run."""
    root = snapshot.job
    queue = queued(root)
    if queue is not None and is_suspended(job):
        queue = replace(queue, is_held=not queue.is_admitted)
    state = job_state(replace(snapshot, queued=queue), {}, with_startup=False)
    kind = job_kinds.engine_of(root)
    status: Object = {
        **(job.get("status") or {}),
        "observedGeneration": job["metadata"].get("generation", 0),
        "phase": str(state.state),
        "engine": kind.name,
        "root": f"{kind.resource}/{root['metadata']['name']}",
        "nodes": f"{state.nodes.ready}/{state.nodes.desired}",
        "replicas": state.nodes.desired,
        "readyReplicas": state.nodes.ready,
        "restarts": restart_count(state.restarts),
        "selector": f"{Label.JOB}={job['metadata']['name']},{Label.ROLE}={Role.WORKER}",
        "conditions": _conditions(job, result, state.state, _message(state), now),
    }
    if state.started is not None:
        status.setdefault("startTime", timestamp(state.started))
    if state.is_terminal:
        status["completionTime"] = timestamp(state.finished or now)
    return status


def status_of_lost_run(job: Object, now: float) -> Object:
    """Return the status of a DDPJob whose root object was deleted. It does not run a second time."""
    status = job.get("status") or {}
    message = f"The {status.get('root', 'root object')} was deleted. Delete the DDPJob and create it again to run it."
    return {
        **status,
        "phase": str(State.FAILED),
        "completionTime": timestamp(now),
        "conditions": _conditions(job, result_of(job), State.FAILED, message, now, reason="RootDeleted"),
    }


def result_of(job: Object) -> JobResult:
    """Return the verdict in the status of a DDPJob."""
    found = condition_of(job, "Valid")
    return JobResult(*(str(found.get(key, "")) for key in ("status", "reason", "message"))) if found else JobResult()


def _message(state: JobState) -> str:
    error = state.first_error
    text = f"{error.location}: {error.first_line}" if error is not None and state.is_terminal else state.reason
    return text[:MOST_MESSAGE_CHARACTERS]


def _conditions(
    job: Object, result: JobResult, state: State, message: str, now: float, *, reason: str = ""
) -> list[Object]:
    """Return all conditions. The time of one that is as before does not change."""
    wanted = {"Valid": (result.status, result.reason, result.message)}
    for kind, states in _OF_STATE.items():
        is_true = state in states
        wanted[kind] = (str(is_true), (reason or str(state)) if is_true else f"Not{kind}", message if is_true else "")
    found: list[Object] = []
    for kind, (status, why, text) in wanted.items():
        before = condition_of(job, kind)
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        found.append(
            {
                "type": kind,
                "status": status,
                "reason": why,
                "message": text[:MOST_MESSAGE_CHARACTERS],
                "lastTransitionTime": since or timestamp(now),
                "observedGeneration": job["metadata"].get("generation", 0),
            }
        )
    return found
