"""Inventory of a place, and what it shows of each machine and queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from kubectl_ddp.kube.kueue_queue import flavor_quotas, inactive_reason
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.nodes import Machine, parse_nodes, used_resources
from kubectl_ddp.preflight.quantities import Amounts, milli_value, subtract
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.values.node_requirements import GPU_PRODUCT

__all__ = ["GPU", "Inventory", "NodeCapacity", "Queue", "Quota", "node_capacities", "queues_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Objects that determine free capacity, as read from the place."""

    namespace: str = ""
    nodes: Sequence[Object] | Unknown
    pods: Sequence[Object] | Unknown
    """Pods of all namespaces, without finished ones."""
    local_queues: Sequence[Object] | Unknown = ()
    """Kueue's LocalQueues of the namespace; empty without Kueue."""
    cluster_queues: Sequence[Object] | Unknown = ()

    def unknown_reasons(self) -> tuple[str, ...]:
        """Return a sentence for each kind of object that could not be read."""
        found = (getattr(self, each.name) for each in fields(self))
        return tuple(dict.fromkeys(fact.why for fact in found if isinstance(fact, Unknown) and fact.why))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """Capacity of one machine."""

    machine: Machine
    gpu_type: str
    """Kind of its GPUs; empty if it has none or no such label."""
    free: Amounts | None
    """Resources that pods have not requested; ``None`` if pods could not be read."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Nominal quota of a ClusterQueue for one resource of one flavor, in thousandths of the resource's unit."""

    flavor: str
    resource: str
    quota: int
    used: int
    """Quota that admitted jobs reserve, with what they borrow from the cohort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """LocalQueue and its ClusterQueue."""

    name: str
    cluster_queue: str
    inactive: str
    """Reason why the queue accepts no jobs; empty if it is active."""
    waiting: int
    """Number of jobs that wait for quota of the same ClusterQueue."""
    quotas: tuple[Quota, ...] | None
    """Quotas; ``None`` if the ClusterQueue could not be read."""


def node_capacities(inventory: Inventory) -> list[NodeCapacity] | None:
    """Return the capacity of every machine, sorted by name; ``None`` if machines could not be read."""
    if isinstance(inventory.nodes, Unknown):
        return None
    used = None if isinstance(inventory.pods, Unknown) else used_resources(inventory.pods)
    return [
        NodeCapacity(
            machine=machine,
            gpu_type=machine.labels.get(GPU_PRODUCT, "") if machine.whole.get(GPU) else "",
            free=None if used is None else subtract(machine.whole, used.get(machine.name, {})),
        )
        for machine in parse_nodes(inventory.nodes)
    ]


def queues_of(inventory: Inventory) -> list[Queue] | None:
    """Return the queues of the namespace, sorted by name; ``None`` if they could not be read."""
    if isinstance(inventory.local_queues, Unknown):
        return None
    clusters = None if isinstance(inventory.cluster_queues, Unknown) else inventory.cluster_queues
    return sorted((_queue(local, clusters) for local in inventory.local_queues), key=lambda queue: queue.name)


def _queue(local: Object, clusters: Sequence[Object] | None) -> Queue:
    leads = str(local["spec"]["clusterQueue"])
    cluster = next((each for each in clusters or () if each["metadata"]["name"] == leads), None)
    status = (cluster or local).get("status") or {}
    return Queue(
        name=str(local["metadata"]["name"]),
        cluster_queue=leads,
        inactive=(inactive_reason(cluster) if cluster else "") or inactive_reason(local),  # the former has details
        waiting=int(status.get("pendingWorkloads") or 0),
        quotas=None if clusters is None else tuple(_quotas(cluster, status) if cluster else ()),
    )


def _quotas(cluster: Object, status: Mapping[str, Any]) -> list[Quota]:
    reserved = {
        (flavor["name"], each["name"]): milli_value(str(each.get("total", "0")))
        for flavor in status.get("flavorsReservation") or ()
        for each in flavor.get("resources") or ()
    }
    found = []
    for flavor, resource in flavor_quotas(cluster):
        name = str(resource["name"])
        found.append(Quota(flavor, name, milli_value(str(resource["nominalQuota"])), reserved.get((flavor, name), 0)))
    return found
