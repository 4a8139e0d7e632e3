"""Checks of Kueue: what it reports of a job that waits, the jobs that hold quota of the queue, preemption."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE, KUEUE_QUEUE, inactive_reason, is_waiting, owner_of
from kubectl_ddp.kube.objects import Object, RelatedKind, condition_of, holds
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.why.facts import Facts, has_label, line_of
from kubectl_ddp.why.lifecycle import PATIENCE_SECONDS, state_of
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

_MOST: Final = 5
_OTHER_LEVELS: Final = ("is above the podset topology", "does not contain the requested level")
"""Kueue's messages about levels that no flavor has, or not in this order; more quota does not help."""


def queued(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job waits in a queue of Kueue."""
    queue = has_label(facts.job, KUEUE_QUEUE)
    if facts.is_over or not queue:
        return
    workload = workload_of(facts)
    if workload is None:
        yield from _missing_workload(facts, queue)
        return
    if not workload["spec"].get("active", True):
        yield _deactivated_finding(facts, workload)
        return
    finished = condition_of(workload, "Finished")
    if finished.get("reason") == "FailedToStart" and job_kinds.is_suspend_requested(facts.job):
        yield diagnosis(
            Cause.QUEUED,
            "Kueue admitted it, failed to start it, and does not try again.",
            f"'{program()} resume {facts.name}{location_flags()}' queues it again.",
            (f"Workload {workload['metadata']['name']}: {line_of(finished.get('message'))}",),
        )
        return
    if holds(workload, "Admitted"):
        return
    yield _waits(facts, workload, queue)


def _deactivated_finding(facts: Facts, workload: Object) -> CauseFinding:
    """Return the finding for a deactivated Workload: suspended by a user, or given up by Kueue."""
    evicted = condition_of(workload, "Evicted")
    gave_up = str(evicted.get("reason", "")).startswith("DeactivatedDueTo")
    return diagnosis(
        Cause.SUSPENDED,
        f"Kueue has given it up: {line_of(evicted.get('message')).rstrip('.')}."
        if gave_up
        else "It is suspended: Kueue holds it back, and it has no pods.",
        f"'{program()} resume {facts.name}{location_flags()}' puts it back into its queue.",
        (f"Workload {workload['metadata']['name']} has active: false",),
    )


def kueue_preemption(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether Kueue preempted the job."""
    workload = workload_of(facts)
    if workload is None or facts.is_over:
        return
    preempted = condition_of(workload, "Preempted")
    was = preempted.get("status") == "True" or condition_of(workload, "Evicted").get("reason") == "Preempted"
    if not was:
        return
    text = line_of(preempted.get("message") or condition_of(workload, "Evicted").get("message"))
    yield diagnosis(
        Cause.PREEMPTED,
        "Kueue took its place away for a job that goes before it, and queued it again.",
        "It begins again by itself when there is room, from its last checkpoint; "
        "a higher --queue-priority or --priority waits less.",
        (f"Workload {workload['metadata']['name']}: {text}",),
        is_aside=holds(workload, "Admitted"),
    )


def _missing_workload(facts: Facts, queue: str) -> Iterator[CauseFinding]:
    """Report that the job has no Workload."""
    if not facts.around.was_read(RelatedKind.WORKLOADS):
        yield diagnosis(
            Cause.QUEUED,
            f"It waits in the queue '{queue}'; for what, its Workload would say, which may not be read.",
            f"'{program()} doctor{location_flags()}' names the right to request.",
            is_aside=facts.is_training,
        )
        return
    if facts.age_seconds < PATIENCE_SECONDS:
        return
    controllers = facts.around.of(RelatedKind.QUEUE_CONTROLLER)
    evidence = [state_of(pod) for pod in controllers if not holds(pod, "Ready")]
    if facts.around.was_read(RelatedKind.QUEUE_CONTROLLER) and not controllers:
        evidence = [f"no pod has the label {KUEUE.selector}"]
    yield diagnosis(
        Cause.QUEUED,
        f"It waits in the queue '{queue}', and Kueue has not taken notice of it.",
        "See that Kueue runs and manages this kind of job (integrations.frameworks in its configuration).",
        evidence or (f"no Workload belongs to it, {int(facts.age_seconds)} s after it was made",),
    )


def _waits(facts: Facts, workload: Object, queue: str) -> CauseFinding:
    text = line_of(condition_of(workload, "QuotaReserved").get("message"))
    local = _named(facts.around.of(RelatedKind.LOCAL_QUEUES), queue)
    cluster_queue = str(local["spec"]["clusterQueue"]) if local else ""
    evidence = [f"Workload {workload['metadata']['name']}: {text}"] if text else []
    if facts.around.was_read(RelatedKind.LOCAL_QUEUES) and local is None:
        what = f"There is no queue '{queue}' in its namespace, so it waits for ever."
        then = "'kubectl get localqueues' names those that are there; submit it again with one of them as --queue."
    elif why := _stopped(facts, local, cluster_queue):
        what = f"It waits in the queue '{queue}', which admits no job now: {why}."
        then = (
            f"Ask the administrator of Kueue; 'kubectl describe localqueue {queue}' and its ClusterQueue have details."
        )
    elif "maximum capacity" in text or "exceeds the nominal" in text:
        what = f"It requests more than the queue '{queue}' can ever admit."
        then = "Make it smaller with --nnodes or --gpus, or request a larger quota."
    elif any(words in text for words in _OTHER_LEVELS) and "insufficient" not in text:  # quota of another flavor
        what = f"It requests levels of --topology that the queue '{queue}' does not have."
        then = (
            "Name levels of the topology that the queue's flavor has, and a pack no narrower than replica: "
            "'kubectl get topologies.kueue.x-k8s.io -o yaml' lists levels, the widest first."
        )
    else:
        place = facts.snapshot.queued.position if facts.snapshot.queued else None
        ahead = f", {place - 1} ahead of it" if place is not None and place > 1 else ""
        grows = f" to grow to {pluralize(facts.state.nodes.desired, 'node')}" if facts.is_training else ""
        what = f"It waits for quota in the queue '{queue}'{grows}{ahead}."
        then = f"Kueue admits it when enough quota is free; '{program()} list -A{location_flags()}' shows the jobs."
        evidence += _holders(facts, workload, cluster_queue)
    return diagnosis(Cause.QUEUED, what, then, evidence, is_aside=facts.is_training)


def _holders(facts: Facts, workload: Object, cluster_queue: str) -> Iterator[str]:
    """Yield a line for each job that holds quota of a ClusterQueue."""
    held = [
        other
        for other in facts.around.of(RelatedKind.WORKLOADS)
        if holds(other, "QuotaReserved")
        and not holds(other, "Finished")
        and ((other.get("status") or {}).get("admission") or {}).get("clusterQueue") == cluster_queue
        and owner_of(other) != owner_of(workload)
    ]
    yield from (f"holds quota: {_describe_workload(other)}" for other in held[:_MOST])
    if (more := len(held) - _MOST) > 0:
        yield f"holds quota: {pluralize(more, 'more job')}"


def workload_of(facts: Facts) -> Object | None:
    """Return the job's Workload, or None. Of several slices, a waiting one precedes the admitted one."""
    uid = facts.job["metadata"].get("uid")
    candidates = [item for item in facts.around.of(RelatedKind.WORKLOADS) if owner_of(item) == uid]
    return min(candidates, key=lambda item: (holds(item, "Finished"), not is_waiting(item)), default=None)


def _named(items: Sequence[Object], name: str) -> Object | None:
    return next((item for item in items if item["metadata"]["name"] == name), None)


def _stopped(facts: Facts, local: Object | None, cluster_queue: str) -> str:
    """Return the reason why the LocalQueue or its ClusterQueue admits no jobs; empty if it does."""
    queues = (_named(facts.around.of(RelatedKind.CLUSTER_QUEUES), cluster_queue), local)
    return next((why for queue in queues if queue is not None and (why := inactive_reason(queue))), "")


def _describe_workload(workload: Object) -> str:
    owners: Sequence[Object] = workload["metadata"].get("ownerReferences") or ({},)
    name = owners[0].get("name") or workload["metadata"]["name"]
    pods = sum(int(pod_set.get("count") or 0) for pod_set in workload["spec"].get("podSets") or ())
    priority = int(workload["spec"].get("priority") or 0)
    return f"{name} in namespace {workload['metadata']['namespace']} ({pluralize(pods, 'pod')}, priority {priority})"
