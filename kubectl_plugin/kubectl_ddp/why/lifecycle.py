"""Checks of a whole job: missing operator, queue, suspension, rejected pods, and intended ends.

Intended ends are deletion, success and deadline; the loss of the engine of a local job is checked here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, holds
from kubectl_ddp.status.describe import summary_text
from kubectl_ddp.status.job_state import State
from kubectl_ddp.status.termination_message import STORE_NAME, stores
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.why.facts import Facts, format_event, label_of, line_of, message_of
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

INCOMPLETE: Final = "ddp.dev/incomplete"
PATIENCE_SECONDS: Final = 8.0
"""Seconds that an operator may take before its inaction counts as a problem."""

_REFUSED: Final = re.compile(
    r"exceeded quota|violates PodSecurity|denied the request|is forbidden|is invalid|Invalid value"
)


def operator(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether an operator acts on the job."""
    if facts.is_over or not facts.is_on_cluster or facts.age_seconds < PATIENCE_SECONDS:
        return
    is_known = bool(facts.job.get("status") or facts.snapshot.pods or facts.has_root_events)
    is_untouched = not is_known and not _is_suspended_or_queued(facts.job)
    engine = job_kinds.engine_of(facts.job)
    who, left_to = engine.operator, job_kinds.at(facts.job, engine.managed_by)
    if is_untouched and left_to and left_to != who.manager:
        yield diagnosis(
            Cause.OPERATOR,
            f"The job is left to the controller '{left_to}', which has not acted on it.",
            f"Start that controller, or submit the job again without managedBy, for {who.name}.",
            (f"managedBy is {left_to}", f"its status is empty, {int(facts.age_seconds)} s after it was made"),
        )
        return
    sick = _operator_problems(facts)
    if (is_untouched or facts.has_missing_pods) and (is_untouched or sick):
        yield _of_operator(facts, who.name, who.selector, sick, is_untouched=is_untouched)


def _of_operator(facts: Facts, name: str, selector: str, sick: list[str], *, is_untouched: bool) -> CauseFinding:
    is_seen = facts.around.was_read(RelatedKind.OPERATOR)
    pods = facts.around.of(RelatedKind.OPERATOR)
    if is_seen and selector and not pods:
        what = f"{subject_of(name)} is not running in this cluster, so nothing acts on the job."
    elif sick:
        what = f"{subject_of(name)} does not run as it should, so nothing acts on the job."
    else:
        what = f"{subject_of(name)} has not acted on the job."
    untouched = (f"the job's status is empty, {int(facts.age_seconds)} s after it was made",) if is_untouched else ()
    where = next((pod["metadata"]["namespace"] for pod in pods), "")
    see = (
        f"'kubectl -n {where} logs -l {selector} --tail 50' says more." if where else f"Look for its pods: {selector}."
    )
    return diagnosis(Cause.OPERATOR, what, see, (*sick, *untouched))


def subject_of(name: str) -> str:
    """Capitalize a name for the beginning of a sentence."""
    return name[:1].upper() + name[1:]


def _is_suspended_or_queued(job: Object) -> bool:
    return job_kinds.is_suspend_requested(job) or bool(label_of(job, KUEUE_QUEUE))


def _operator_problems(facts: Facts) -> list[str]:
    """Return the problems of the operator's pods; empty if one of them is ready."""
    pods = facts.around.of(RelatedKind.OPERATOR)
    if any(holds(pod, "Ready") for pod in pods):
        return []
    return [state_of(pod) for pod in pods]


def state_of(pod: Object) -> str:
    """Return the state of another component's pod in one line."""
    name = f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"
    for status in pod.get("status", {}).get("containerStatuses") or ():
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting:
            return f"pod {name}: {waiting.get('reason')} after {status.get('restartCount', 0)} restarts: " + line_of(
                waiting.get("message"), most=200
            )
    return f"pod {name}: {pod.get('status', {}).get('phase')}, not ready"


def job_suspension(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job is suspended."""
    if facts.is_over or not job_kinds.is_suspend_requested(facts.job) or label_of(facts.job, KUEUE_QUEUE):
        return
    if INCOMPLETE in (facts.job["metadata"].get("annotations") or {}):
        yield diagnosis(
            Cause.SUSPENDED,
            "Its submission was cut off before its end, so nothing of it runs.",
            f"Submit it again, which finishes it, or '{program()} delete {facts.name}{location_flags()}'.",
            (f"annotation {INCOMPLETE}",),
        )
        return
    left = [f"pod {pod['metadata']['name']} has not ended yet" for pod in facts.snapshot.pods[:4]]
    yield diagnosis(
        Cause.SUSPENDED,
        "It is suspended: it keeps its place and has no pods.",
        f"'{program()} resume {facts.name}{location_flags()}' resumes it.",
        ("suspend is true", *left),
    )


def rejected_pods(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the API server rejects the job's pods, because of a quota, Pod Security, or a webhook."""
    events = [
        event
        for event in facts.events("FailedCreate", "FailedCreatePod")
        if _REFUSED.search(message_of(event)) and _is_missing_pod_of(facts, event)
    ]
    if not events:
        return
    text, is_of_store = line_of(message_of(events[-1])), _is_of_store(events[-1])
    pods = "the pod of its rendezvous store" if is_of_store else "its pods"
    if "exceeded quota" in text:
        yield diagnosis(
            Cause.QUOTA,
            f"The namespace's quota does not allow {pods}: {_after('exceeded quota:', text)}.",
            "'kubectl describe resourcequota' shows what is used; make the job smaller, or request more.",
            (format_event(events[-1]),),
        )
        return
    yield diagnosis(
        Cause.ADMISSION,
        f"The API server refuses {pods}: {_after('is forbidden:', text)}.",
        "The store has the same size in every job: what the message names has to change in the namespace."
        if is_of_store
        else "What the message names has to change in the job, or in the namespace's labels and policies.",
        (format_event(events[-1]),),
    )


def _is_missing_pod_of(facts: Facts, event: Object) -> bool:
    """Return True if pods are missing that the object of an event would have made."""
    if _is_of_store(event):
        return not (facts.is_over or job_kinds.is_suspend_requested(facts.job) or stores(facts.pods))
    return facts.has_missing_pods


def _is_of_store(event: Object) -> bool:
    return STORE_NAME.search(str(event["involvedObject"]["name"])) is not None


def _after(mark: str, text: str) -> str:
    return text.rpartition(mark)[2].strip().rstrip(".")


def pending_deletion(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job is being deleted, and which finalizers block it."""
    metadata = facts.job["metadata"]
    if "deletionTimestamp" not in metadata:
        return
    holders = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer != "foregroundDeletion"]
    waits = f"; it waits for {', '.join(holders)}" if holders else ""
    pods = [f"pod {pod['metadata']['name']} has not ended yet" for pod in facts.snapshot.pods]
    yield diagnosis(
        Cause.DELETING,
        f"It is being deleted since {metadata['deletionTimestamp']}{waits}.",
        "The controller that set the finalizer must remove it; check that it runs."
        if holders
        else f"Nothing to do: '{program()} wait {facts.name} --for=deleted{location_flags()}' ends with it.",
        pods[:8],
    )


def finished(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job has succeeded."""
    if facts.state.state is State.SUCCEEDED:
        summary = summary_text(facts.state.summary or {})
        apart = "ranks_together" in (facts.state.summary or {})
        yield diagnosis(
            Cause.FINISHED,
            "It has succeeded, but its ranks never worked together: each node may have done the same work."
            if apart
            else "It has succeeded.",
            f"'{program()} logs {facts.name}{location_flags()}' prints what it wrote.",
            (summary,) if summary else (),
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
