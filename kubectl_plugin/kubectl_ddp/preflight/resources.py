"""Resources: quantities, machines of a cluster and what pods use there, and the checks of all nodes of a job together.

Kubernetes quantities are integers in thousandths: their sums are exact and fast.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from kubectl_ddp.engines import ENGINES, PARTIALLY_ADMITTED, Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import PreflightFacts, Subject, pods_of, read
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.quantity import BINARY, DECIMAL

Amounts = Mapping[str, int]
"""Resource → amount in thousandths of its unit: ``{"cpu": 1500}`` is 1.5 cores."""

PODS: Final = "pods"
"""Resource of which every pod uses one."""

_UNITS: Final[Mapping[str, Fraction | int]] = {
    **BINARY,
    **DECIMAL,
    "m": Fraction(1, 10**3),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
_QUANTITY: Final = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([KMGTPE]i|[numkMGTPE])?)")


@functools.cache
def milli_value(text: str) -> int:
    """Parse a quantity into thousandths, rounded up as in Kubernetes; 0 if the text is invalid.

    >>> milli_value("1.5"), milli_value("100m"), milli_value("1Ki"), milli_value("2e3"), milli_value("1n")
    (1500, 100, 1024000, 2000000, 1)
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        return 0
    number, exponent, unit = match.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _UNITS[unit or ""]
    return math.ceil(Fraction(number) * scale * 1000)


def milli_values(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    """Parse a map of quantities, such as a node's allocatable resources."""
    return {name: milli_value(str(quantity)) for name, quantity in (quantities or {}).items()}


def requests_of(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the resources that a pod uses on its machine: the scheduler's sum over its containers, plus one pod."""
    sidecars: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in pod.get("initContainers") or ():
        wanted = _requests(container.get("resources"))
        peak = _elementwise_max(peak, added(sidecars, wanted))
        if container.get("restartPolicy") == "Always":
            sidecars = added(sidecars, wanted)
    running = functools.reduce(
        added, (_requests(container.get("resources")) for container in pod["containers"]), sidecars
    )
    combined = _elementwise_max(peak, running) | _requests(pod.get("resources"))
    return added(added(combined, milli_values(pod.get("overhead"))), {PODS: 1000})


def _requests(resources: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the requests of a container. As in Kubernetes, a limit without a request is also the request."""
    fields = resources or {}
    return milli_values(fields.get("limits")) | milli_values(fields.get("requests"))


def added(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return the sum of two amounts."""
    return dict(left) | {name: left.get(name, 0) + amount for name, amount in right.items()}


def subtract(left: Amounts, right: Amounts) -> dict[str, int]:
    """Return ``left - right`` for the resources in ``left``; negative if more was used than exists."""
    return dict(left) | {name: left.get(name, 0) - amount for name, amount in right.items() if name in left}


def copies(requests: Amounts, free: Amounts) -> int:
    """Return how many times ``requests`` fits into ``free``."""
    return max(0, min((free.get(name, 0) // amount for name, amount in requests.items() if amount), default=0))


def times(one: Amounts, count: int) -> dict[str, int]:
    """Return the amounts multiplied by ``count``."""
    return {name: amount * count for name, amount in one.items()}


def total(many: Iterable[Amounts]) -> dict[str, int]:
    """Return the sum of all amounts."""
    return functools.reduce(added, many, {})


def _elementwise_max(left: Amounts, right: Amounts) -> dict[str, int]:
    return dict(left) | {name: max(left.get(name, 0), amount) for name, amount in right.items()}


def format_quantity(resource: str, amount: int) -> str:
    """Format an amount with the name of its resource.

    >>> amounts = {"cpu": 1500, "memory": 3 * 2**30 * 1000, "nvidia.com/gpu": 8000}
    >>> tuple(format_quantity(name, amount) for name, amount in amounts.items())
    ('1.5 cpu', '3Gi memory', '8 nvidia.com/gpu')
    """
    return f"{number(resource, amount)} {resource}"


def number(resource: str, amount: int) -> str:
    """Format an amount without the name of its resource.

    >>> number("cpu", 250), number("memory", 2 * 2**30 * 1000)
    ('0.25', '2Gi')
    """
    value = amount / 1000
    if "memory" in resource or "storage" in resource or "hugepages" in resource:
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if abs(value) >= BINARY[suffix]:
                return f"{value / BINARY[suffix]:.4g}{suffix}"
    return f"{value:g}"


OVER: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that use no resources."""

CONDITION_TAINTS: Final = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets on a machine for as long as a condition such as memory pressure lasts."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Kubernetes node, here called machine because *node* is this project's word for a worker pod."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[str, ...]
    """Permanent taints that repel pods, as kubectl formats them: ``gpu=big:NoSchedule``."""
    allocatable: Amounts
    """Allocatable resources."""
    closed: str
    """Reason why the machine accepts no pods now; empty if it does."""


def parse_nodes(nodes: Iterable[Object]) -> list[Machine]:
    """Return the machines of a cluster, sorted by name."""
    return sorted((_machine(node) for node in nodes), key=lambda machine: machine.name)


def _machine(node: Object) -> Machine:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = [taint for taint in spec.get("taints") or () if taint.get("effect") in {"NoSchedule", "NoExecute"}]
    return Machine(
        name=str(node["metadata"]["name"]),
        labels=node["metadata"].get("labels") or {},
        taints=tuple(_format_taint(taint) for taint in taints if not taint["key"].startswith(CONDITION_TAINTS)),
        allocatable=milli_values(status.get("allocatable")),
        closed=_closed(spec, status, taints),
    )


def _format_taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _closed(spec: Mapping[str, Any], status: Mapping[str, Any], taints: Sequence[Mapping[str, Any]]) -> str:
    ready = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    if ready.get("Ready", "True") != "True":
        return "is not ready"
    if spec.get("unschedulable"):
        return "is cordoned"
    passing = [str(taint["key"]) for taint in taints if taint["key"].startswith(CONDITION_TAINTS)]
    return f"is tainted {passing[0]}" if passing else ""


def used_resources(pods: Iterable[Object]) -> dict[str, Amounts]:
    """Return name of a machine → resources that unfinished pods request there."""
    found: dict[str, Amounts] = {}
    for pod in pods:
        machine = pod["spec"].get("nodeName")
        if machine and (pod.get("status") or {}).get("phase") not in OVER:
            found[machine] = added(found.get(machine, {}), requests_of(pod["spec"]))
    return found


DEPENDABLE: Final = Engine.JOB
"""Engine without a CRD, whose pods have every field that the API server has."""


def check_node_resources(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the allocatable resources of all machines are enough for the nodes of the job.

    It is an upper bound: labels, taints, topology and other pods are left to the scheduler. More never fit.
    """
    requests, machines = requests_of(subject.worker["spec"]), parse_nodes(read(facts.nodes))
    room = sum(copies(requests, machine.allocatable) for machine in machines)
    nodes, largest = subject.spec.nnodes, subject.spec.largest_pod_count
    grows = facts.grows is True or not isinstance(facts.grows, bool)
    why = "".join(f"; {reason}" for reason in lacking_resources(requests, machines))
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


def lacking_resources(requests: Amounts, machines: Sequence[Machine]) -> Iterator[str]:
    """Yield each requested resource of which no machine has enough for one pod."""
    for name, amount in requests.items():
        largest = max((machine.allocatable.get(name, 0) for machine in machines), default=0)
        if largest < amount:
            yield f"no machine has {format_quantity(name, amount)}, the largest has {number(name, largest)}"


def check_native_gang(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
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
