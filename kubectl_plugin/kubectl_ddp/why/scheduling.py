"""Checks of pods and jobs that wait: the scheduler's message by predicate, volumes, and Kueue's reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE, KUEUE_ELASTIC, KUEUE_QUEUE, inactive_reason, is_waiting, owner_of
from kubectl_ddp.kube.objects import Object, RelatedKind, condition_of, holds
from kubectl_ddp.preflight.resources import lacking_resources, parse_nodes, requests_of
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.why.facts import Facts, claims_of, format_event, label_of, line_of, names_of, subject
from kubectl_ddp.why.lifecycle import PATIENCE_SECONDS, state_of
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

SCHEDULER_SECONDS: Final = 5.0
_VOLUME: Final = re.compile(
    r"persistentvolumeclaim|volume node affinity|PersistentVolume's node affinity|persistent volumes to bind",
    re.IGNORECASE,
)
_COUNTED: Final = re.compile(r"(\d+) (?:node\(s\) )?([^,]+?(?:\{[^}]*\})?)(?:, (?=\d)|\.(?: |$)|$)")


def scheduling_failure(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether pods fit no node."""
    pods = [pod for pod in facts.pods if _is_unschedulable(pod) and not _has_volume_problem(pod)]
    if not pods:
        return
    texts = [str(condition_of(pod, "PodScheduled").get("message") or "") for pod in pods]
    text = max(
        texts, key=lambda message: len(nodes_by_predicate(message))
    )  # a pod of a gang may only wait for the others
    predicates = nodes_by_predicate(text)
    evidence = [f"the scheduler: {line_of(text)}"] if text else []
    if selector := pods[0]["spec"].get("nodeSelector"):
        evidence.append(f"nodeSelector of the pods: {', '.join(f'{key}={value}' for key, value in selector.items())}")
    reasons = ", ".join(f"{count} {what}" for what, count in predicates.items()) or line_of(text, most=160)
    reasons = reasons or "the scheduler does not say why"
    machines = parse_nodes(facts.around.of(RelatedKind.NODES))
    lacking = [*lacking_resources(requests_of(pods[0]["spec"]), machines)] if machines else []
    yield diagnosis(
        Cause.UNSCHEDULABLE,
        f"{subject(names_of(pods))} fit{'s' if len(pods) == 1 else ''} no node: {'; '.join(lacking) or reasons}.",
        "Request less per node, or add a larger machine." if lacking else _help(predicates, facts.name),
        evidence,
    )


def gated(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a scheduling gate holds pods, or their scheduler does not run."""
    pending = [pod for pod in facts.pods if pod.get("status", {}).get("phase") == "Pending"]
    gates_of = {pod["metadata"]["name"]: _gates(pod) - {KUEUE_ELASTIC} for pod in pending}
    held = [pod for pod in pending if gates_of[pod["metadata"]["name"]]]
    if held:
        gates = ", ".join(gate["name"] for gate in held[0]["spec"]["schedulingGates"])
        yield diagnosis(
            Cause.UNSCHEDULABLE,
            f"{subject(names_of(held))} may not be scheduled yet: the gate {gates} is closed.",
            "The controller that set the gate must remove it; check that it runs.",
            (f"schedulingGates of pod {held[0]['metadata']['name']}: {gates}",),
        )
    unseen = [pod for pod in pending if not _gates(pod) and _has_no_scheduler_status(facts, pod)]
    if unseen:
        scheduler = unseen[0]["spec"].get("schedulerName", "default-scheduler")
        yield diagnosis(
            Cause.UNSCHEDULABLE,
            f"The scheduler '{scheduler}' has not looked at {names_of(unseen)}: it does not run.",
            "Start that scheduler, or submit the job again with another --scheduler.",
            (f"pod {unseen[0]['metadata']['name']} has no condition PodScheduled",),
        )


def _gates(pod: Object) -> set[str]:
    return {str(gate["name"]) for gate in pod["spec"].get("schedulingGates") or ()}


def claims(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a volume keeps pods from every node."""
    pods = [pod for pod in facts.pods if _is_unschedulable(pod) and _has_volume_problem(pod)]
    if not pods:
        return
    text = line_of(condition_of(pods[0], "PodScheduled").get("message"))
    wanted = claims_of(pods[0])
    known = {claim["metadata"]["name"]: claim for claim in facts.around.of(RelatedKind.CLAIMS)}
    missing = [name for name in wanted if facts.around.was_read(RelatedKind.CLAIMS) and name not in known]
    unbound = [known[name] for name in wanted if name in known and known[name]["status"].get("phase") != "Bound"]
    evidence = [f"the scheduler: {text}"]
    evidence += [
        f"claim {claim['metadata']['name']}: {claim['status'].get('phase')}{_class(claim)}" for claim in unbound
    ]
    evidence += [format_event(event) for event in facts.events_of_claims()[-2:]]
    if missing:
        what, then = f"The claim '{missing[0]}' does not exist", "Create it, or name another."
    elif unbound:
        what = f"The claim '{unbound[0]['metadata']['name']}' has no volume"
        then = f"'kubectl describe pvc {unbound[0]['metadata']['name']}' shows why it is pending."
    else:
        what, then = f"A volume keeps {names_of(pods)} from every node", "'kubectl get pv,pvc' shows zones and modes."
    yield diagnosis(Cause.VOLUME, f"{what}, so {names_of(pods)} cannot start.", then, evidence)


def nodes_by_predicate(message: str) -> dict[str, int]:
    """Parse the scheduler's message into the number of nodes per predicate, without its part about preemption.

    >>> message = "0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient cpu. preemption: no"
    >>> nodes_by_predicate(message)
    {'had untolerated taint(s)': 1, 'Insufficient cpu': 2}
    """
    text = message.partition("nodes are available: ")[2].partition(" preemption:")[0].partition(" no new claims")[0]
    return {what.strip().rstrip("."): int(count) for count, what in _COUNTED.findall(text)}


def _is_unschedulable(pod: Object) -> bool:
    scheduled = condition_of(pod, "PodScheduled")
    return scheduled.get("status") == "False" and scheduled.get("reason") != "SchedulingGated"


def _has_volume_problem(pod: Object) -> bool:
    return bool(_VOLUME.search(str(condition_of(pod, "PodScheduled").get("message") or "")))


def _has_no_scheduler_status(facts: Facts, pod: Object) -> bool:
    return (
        not pod["spec"].get("nodeName")
        and not condition_of(pod, "PodScheduled")
        and facts.age_seconds > SCHEDULER_SECONDS
    )


def _class(claim: Object) -> str:
    name = claim["spec"].get("storageClassName")
    return f", storage class {name}" if name else ", no storage class"


_HELPS: Final = (
    (re.compile(r"Insufficient"), "Request less, or free resources; '{program} capacity' shows what is free."),
    (re.compile(r"topology|anti-affinity"), "Loosen --topology, or request fewer nodes."),
    (re.compile(r"affinity|selector"), "'kubectl get nodes --show-labels' shows labels; correct --node-selector."),
    (
        re.compile(r"claim"),
        "'kubectl get resourceclaims,resourceslices' shows which devices there are and who has them.",
    ),
    (
        re.compile(r"taint"),
        "'{program} capacity' shows the taints; tolerate one with --toleration KEY, or wait until it goes.",
    ),
)


def _help(predicates: Mapping[str, int], name: str) -> str:
    for pattern, text in _HELPS:
        if any(pattern.search(what) for what in predicates):
            return text.format(program=program())
    return f"'kubectl describe pods -l ddp.dev/job={name}' shows every word of the scheduler."


_MOST: Final = 5
_OTHER_LEVELS: Final = ("is above the podset topology", "does not contain the requested level")
"""Kueue's messages about levels that no flavor has, or not in this order; more quota does not help."""


def queued(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether the job waits in a queue of Kueue."""
    queue = label_of(facts.job, KUEUE_QUEUE)
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
        what = f"LocalQueue '{queue}' does not exist in the job's namespace, so the job waits for it."
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
        evidence += _quota_users(facts, workload, cluster_queue)
    return diagnosis(Cause.QUEUED, what, then, evidence, is_aside=facts.is_training)


def _quota_users(facts: Facts, workload: Object, cluster_queue: str) -> Iterator[str]:
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
