"""Machines of a cluster, and the resources that pods use there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.quantities import Amounts, added, milli_values, requests_of

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
    whole: Amounts
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
        whole=milli_values(status.get("allocatable")),
        closed=_closed(spec, status, taints),
    )


def _format_taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint['key']}{value}:{taint['effect']}"


def _closed(spec: Mapping[str, Any], status: Mapping[str, Any], taints: Sequence[Mapping[str, Any]]) -> str:
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}
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
