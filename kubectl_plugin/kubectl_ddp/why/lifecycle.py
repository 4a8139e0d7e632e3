"""Checks for intended ends of a job: deletion, success, deadline; and for the loss of its local engine."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.status.describe import summary_text
from kubectl_ddp.status.job_state import State
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis


def pending_deletion(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job is being deleted, and which finalizers block it."""
    about = facts.job["metadata"]
    if "deletionTimestamp" not in about:
        return
    holders = [each for each in about.get("finalizers") or () if each != "foregroundDeletion"]
    waits = f"; it waits for {', '.join(holders)}" if holders else ""
    pods = [f"pod {pod['metadata']['name']} has not ended yet" for pod in facts.snapshot.pods]
    yield diagnosis(
        Cause.DELETING,
        f"It is being deleted since {about['deletionTimestamp']}{waits}.",
        "The controller that set the finalizer must remove it; check that it runs."
        if holders
        else f"Nothing to do: '{program()} wait {facts.name} --for=deleted{location_flags()}' ends with it.",
        pods[:8],
    )


def finished(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job has succeeded."""
    if facts.state.state is State.SUCCEEDED:
        told = summary_text(facts.state.summary or {})
        apart = "ranks_together" in (facts.state.summary or {})
        yield diagnosis(
            Cause.FINISHED,
            "It has succeeded, but its ranks never worked together: each node may have done the same work."
            if apart
            else "It has succeeded.",
            f"'{program()} logs {facts.name}{location_flags()}' prints what it wrote.",
            (told,) if told else (),
        )


def engine_lost(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the local engine has died, and its pods with it."""
    if facts.state.state is State.LOST:
        yield diagnosis(
            Cause.ENGINE_LOST,
            facts.state.reason,
            f"'{program()} resume {facts.name}{location_flags()}' resumes it from its last checkpoint.",
        )


def deadline(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job exceeded its deadline."""
    failed = job_kinds.conditions(facts.job).get("Failed") or {}
    text = f"{failed.get('reason', '')} {failed.get('message', '')}"
    if "DeadlineExceeded" in text or "deadline" in text.lower():
        yield diagnosis(
            Cause.DEADLINE,
            "It was stopped at its deadline.",
            "Submit it again with a longer --deadline; with checkpoints it resumes from the last one.",
            (f"condition Failed: {text.strip()}",),
        )
