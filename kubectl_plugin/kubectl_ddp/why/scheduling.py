"""Checks of unscheduled pods: the scheduler's own message, by predicate, and volumes that keep pods from every node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from kubectl_ddp.kube.kueue_queue import KUEUE_ELASTIC
from kubectl_ddp.kube.objects import Object, RelatedKind, condition_of
from kubectl_ddp.util.process import program
from kubectl_ddp.why.facts import Facts, claims_of, format_event, line_of, names_of, subject
from kubectl_ddp.why.model import Cause, CauseFinding, diagnosis

PATIENCE_SECONDS: Final = 5.0
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
    yield diagnosis(
        Cause.UNSCHEDULABLE,
        f"{subject(names_of(pods))} fit{'s' if len(pods) == 1 else ''} no node: {reasons}.",
        _help(predicates, facts.name),
        evidence,
    )


def gated(facts: Facts) -> Iterator[CauseFinding]:
    """Check whether a scheduling gate holds pods, or their scheduler does not run."""
    pending = [pod for pod in facts.pods if pod.get("status", {}).get("phase") == "Pending"]
    gates_of = {pod["metadata"]["name"]: _gates(pod) - {KUEUE_ELASTIC} for pod in pending}  # see why/queue.py
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
        and facts.age_seconds > PATIENCE_SECONDS
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
