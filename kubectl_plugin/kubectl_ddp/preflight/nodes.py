"""Machines of a cluster, and the pods that run on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.common.constants import Label
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.quantities import Amounts, milli_values, requests_of

OVER: Final = frozenset({"Succeeded", "Failed"})
"""Phases of pods that use no resources."""

JOB_LABELS: Final = (
    Label.JOB,
    *dict.fromkeys(engine.pod_label for engine in ENGINES.values()),
    "volcano.sh/job-name",
)
"""Labels with the name of a pod's job, ours first."""

CONDITION_TAINTS: Final = "node.kubernetes.io/"
"""Prefix of the taints that Kubernetes sets on a machine for as long as a condition such as memory pressure lasts."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Kubernetes node, here called machine because *node* is this project's word for a worker pod."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    """Permanent taints that repel pods."""
    whole: Amounts
    """Allocatable resources."""
    closed: str
    """Reason why the machine accepts no pods now; empty if it does."""


@dataclass(frozen=True, slots=True)
class ScheduledPod:
    """Pod that is bound to a machine."""

    machine: str
    wants: Amounts
    owner: str
    """Job of the pod, as ``NAMESPACE/NAME``; empty for pods that do not end, such as those of services."""
    priority: int


def parse_nodes(nodes: Iterable[Object]) -> list[Machine]:
    """Return the machines of a cluster, sorted by name."""
    return sorted((_machine(node) for node in nodes), key=lambda machine: machine.name)


def _machine(node: Object) -> Machine:
    spec, status = node.get("spec") or {}, node.get("status") or {}
    name = str(node["metadata"]["name"])
    keeping = [taint for taint in spec.get("taints") or () if taint.get("effect") in {"NoSchedule", "NoExecute"}]
    return Machine(
        name=name,
        labels={"metadata.name": name, **(node["metadata"].get("labels") or {})},
        taints=tuple(taint for taint in keeping if not taint["key"].startswith(CONDITION_TAINTS)),
        whole=milli_values(status.get("allocatable")),
        closed=_closed(spec, status, keeping),
    )


def _closed(spec: Mapping[str, Any], status: Mapping[str, Any], taints: Sequence[Mapping[str, Any]]) -> str:
    ready = {each["type"]: each["status"] for each in status.get("conditions") or ()}
    if ready.get("Ready", "True") != "True":
        return "is not ready"
    if spec.get("unschedulable"):
        return "is cordoned"
    passing = [str(taint["key"]) for taint in taints if taint["key"].startswith(CONDITION_TAINTS)]
    return f"is tainted {passing[0]}" if passing else ""


def scheduled_pods(pods: Iterable[Object]) -> list[ScheduledPod]:
    """Return the pods that use resources of a machine."""
    return [
        ScheduledPod(
            machine=str(pod["spec"]["nodeName"]),
            wants=requests_of(pod["spec"]),
            owner=owner_of(pod),
            priority=int(pod["spec"].get("priority") or 0),
        )
        for pod in pods
        if pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase") not in OVER
    ]


def owner_of(pod: Object) -> str:
    """Return the job of a pod, as ``NAMESPACE/NAME``; empty if it has none."""
    about = pod["metadata"]
    labels = about.get("labels") or {}
    name = next((labels[label] for label in JOB_LABELS if label in labels), "")
    return f"{about.get('namespace', '')}/{name}" if name else ""


def used(occupants: Iterable[ScheduledPod]) -> dict[str, dict[str, int]]:
    """Return machine → resources requested by pods."""
    found: dict[str, dict[str, int]] = {}
    for occupant in occupants:
        at = found.setdefault(occupant.machine, {})
        for name, amount in occupant.wants.items():
            at[name] = at.get(name, 0) + amount
    return found
