"""Resources: Kubernetes quantities in integer thousandths, machines of a cluster, and what pods use there.

Sums of integers are exact and fast.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from kubectl_ddp.kube.objects import Object
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
