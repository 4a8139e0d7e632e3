"""Checks of all nodes of a job together: resources of the machines for them, their gang, and ResourceQuotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.engines import ENGINES, PARTIALLY_ADMITTED, Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import PreflightFacts, Subject, pods_of, read
from kubectl_ddp.preflight.resources import (
    Amounts,
    Machine,
    added,
    copies,
    format_quantity,
    milli_value,
    milli_values,
    number,
    parse_nodes,
    requests_of,
    times,
)
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.util.text_table import pluralize

DEPENDABLE: Final = Engine.JOB
"""Engine without a CRD, whose pods have every field that the API server has."""


def check_machines(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the allocatable resources of all machines are enough for the nodes of the job.

    It is an upper bound: labels, taints, topology and other pods are left to the scheduler. More never fit.
    """
    requests, machines = requests_of(subject.worker["spec"]), parse_nodes(read(facts.nodes))
    room = sum(copies(requests, machine.allocatable) for machine in machines)
    nodes, largest = subject.spec.nnodes, subject.spec.largest_pod_count
    grows = facts.grows is True or not isinstance(facts.grows, bool)
    why = "".join(f"; {reason}" for reason in _lacking(requests, machines))
    if room >= largest:
        yield ok(f"The machines have the resources for {size_text(subject, largest)}, if nothing else runs there.")
    elif room >= nodes.minimum:
        yield warning(
            f"The machines never have the resources for more than {room} of {size_text(subject, largest)}{why}.",
            "It trains with those; request fewer nodes with --nnodes, or less per node.",
        )
    else:
        yield Finding(
            Severity.WARNING if grows else Severity.ERROR,
            f"{'Today the job cannot' if grows else 'The job can never'} fit: it needs "
            f"{pluralize(nodes.minimum, 'node')} at the same time, and the machines have the resources for {room}, "
            f"even if nothing else runs there{why}.",
            "Machines seem to be added when pods wait, so this may change; else request less."
            if grows
            else "Request fewer nodes with --nnodes, less per node, or other machines.",
        )


def _lacking(requests: Amounts, machines: Sequence[Machine]) -> Iterator[str]:
    """Yield each requested resource of which no machine has enough for one pod."""
    for name, amount in requests.items():
        largest = max((machine.allocatable.get(name, 0) for machine in machines), default=0)
        if largest < amount:
            yield f"no machine has {format_quantity(name, amount)}, the largest has {number(name, largest)}"


def reaches_pods(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the engine passes the group of ``--gang native`` on to its pods."""
    engine = ENGINES[subject.spec.engine]
    if read(facts.has_scheduling_group):
        yield ok(f"The pods of a {engine.kind} can be in a gang of Kubernetes' own scheduler.")
    else:
        yield error(
            f"The {engine.kind} of this cluster drops spec.schedulingGroup of its pods, so --gang native cannot start "
            "them together.",
            f"Update {engine.product} and its CRDs, or use --engine {DEPENDABLE} or another --gang.",
        )


def first_pod_count(subject: Subject) -> int:
    """Return the number of pods with which the job starts.

    This is its minimum of nodes, or all pods with the spares if Kueue admits the job as a whole.
    """
    spec = subject.spec
    is_all_or_nothing = is_kueue_managed(spec) and spec.engine not in PARTIALLY_ADMITTED
    return spec.largest_pod_count if is_all_or_nothing else spec.nnodes.minimum


def size_text(subject: Subject, pods: int) -> str:
    """Return a number of pods in words, as in ``4 nodes and 1 spare`` for all pods of a job."""
    spec = subject.spec
    if spec.spares and pods == spec.largest_pod_count:
        return f"{pluralize(spec.nnodes.maximum, 'node')} and {pluralize(spec.spares, 'spare')}"
    return pluralize(pods, "node")


REQUESTS, LIMITS = "requests.", "limits."
PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
"""Resources whose requests a quota may name without the prefix ``requests.``."""


def check_resource_quota(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that every quota has room for the nodes with which the job starts."""
    worker, store = pods_of(subject)
    count = first_pod_count(subject)
    wanted = added(times(pod_quota_usage(worker), count), pod_quota_usage(store) if store else {})
    pods = size_text(subject, count) + (" with the store" if store else "")
    for quota in read(facts.quotas):
        if applies(quota, subject):
            yield from _left(quota, wanted, pods)


def pod_quota_usage(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the use of quota by a pod, under the resource names of ResourceQuotas."""
    requests = requests_of(pod)
    found = {"pods": 1000, "count/pods": 1000} | {f"{REQUESTS}{name}": amount for name, amount in requests.items()}
    found |= {name: requests[name] for name in PLAIN if name in requests}
    sidecars = [
        container for container in pod.get("initContainers") or () if container.get("restartPolicy") == "Always"
    ]
    for container in (*sidecars, *pod["containers"]):
        limits = milli_values((container.get("resources") or {}).get("limits"))
        found = added(found, {f"{LIMITS}{name}": amount for name, amount in limits.items()})
    return found


def applies(quota: Object, subject: Subject) -> bool:
    """Return whether a quota applies to the job's pods, which have resource requests and no deadline."""
    spec = quota.get("spec") or {}
    if {"Terminating", "BestEffort", "CrossNamespacePodAffinity"} & set(spec.get("scopes") or ()):
        return False
    expressions = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_selects(expression, subject.spec.priority) for expression in expressions)


def _selects(expression: Mapping[str, Any], priority: str | None) -> bool:
    if expression["scopeName"] != "PriorityClass":
        return expression["scopeName"] in {"NotTerminating", "NotBestEffort"}
    match expression["operator"]:
        case "In":
            return priority in (expression.get("values") or ())
        case "NotIn":
            return priority not in (expression.get("values") or ())
        case "Exists":
            return priority is not None
    return priority is None


def _left(quota: Object, wanted: Mapping[str, int], pods: str) -> Iterator[Finding]:
    name = quota["metadata"]["name"]
    status = quota.get("status") or {}
    hard, used = status.get("hard") or (quota.get("spec") or {}).get("hard") or {}, status.get("used") or {}
    short = False
    for resource, text in hard.items():
        if not (requested := wanted.get(resource, 0)):  # overuse of another resource does not affect this job
            continue
        most = milli_value(str(text))
        left = most - milli_value(str(used.get(resource, "0")))
        bare = resource.removeprefix(REQUESTS)
        if requested > most:
            short = True
            yield error(
                f"The quota '{name}' allows {format_quantity(resource, most)}, and {pods} "
                f"take {format_quantity(bare, requested)}.",
                "Request less, or a larger quota.",
            )
        elif requested > left:
            short = True
            yield warning(
                f"The quota '{name}' has {format_quantity(resource, max(0, left))} left of "
                f"{format_quantity(bare, most)}, and {pods} "
                f"take {format_quantity(bare, requested)}.",
                "Pods are refused until others of the namespace have ended.",
            )
    if not short:
        yield ok(f"The quota '{name}' is large enough.")
