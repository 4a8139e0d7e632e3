"""Free capacity of a place by machine, kind of GPU and queue, as its objects show it, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from kubectl_ddp.errors import Forbidden, NotFound
from kubectl_ddp.kube.kueue_queue import flavor_quotas, inactive_reason
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.resources import Amounts, Machine, milli_value, number, parse_nodes, subtract, used_resources
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.text_table import NOTHING, Cell, Table
from kubectl_ddp.values.pod import GPU_PRODUCT


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityObjects:
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
        found = (getattr(self, field.name) for field in fields(self))
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


def node_capacities(objects: CapacityObjects) -> list[NodeCapacity] | None:
    """Return the capacity of every machine, sorted by name; ``None`` if machines could not be read."""
    if isinstance(objects.nodes, Unknown):
        return None
    used = None if isinstance(objects.pods, Unknown) else used_resources(objects.pods)
    return [
        NodeCapacity(
            machine=machine,
            gpu_type=machine.labels.get(GPU_PRODUCT, "") if machine.allocatable.get(GPU) else "",
            free=None if used is None else subtract(machine.allocatable, used.get(machine.name, {})),
        )
        for machine in parse_nodes(objects.nodes)
    ]


def queues_of(objects: CapacityObjects) -> list[Queue] | None:
    """Return the queues of the namespace, sorted by name; ``None`` if they could not be read."""
    if isinstance(objects.local_queues, Unknown):
        return None
    clusters = None if isinstance(objects.cluster_queues, Unknown) else objects.cluster_queues
    return sorted((_queue(local, clusters) for local in objects.local_queues), key=lambda queue: queue.name)


def _queue(local: Object, clusters: Sequence[Object] | None) -> Queue:
    leads = str(local["spec"]["clusterQueue"])
    cluster = next(
        (cluster_queue for cluster_queue in clusters or () if cluster_queue["metadata"]["name"] == leads), None
    )
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
        (flavor["name"], resource["name"]): milli_value(str(resource.get("total", "0")))
        for flavor in status.get("flavorsReservation") or ()
        for resource in flavor.get("resources") or ()
    }
    found = []
    for flavor, resource in flavor_quotas(cluster):
        name = str(resource["name"])
        found.append(Quota(flavor, name, milli_value(str(resource["nominalQuota"])), reserved.get((flavor, name), 0)))
    return found


CPU, MEMORY = "cpu", "memory"
AMOUNTS: Final[Mapping[str, tuple[str, type]]] = {
    GPU: ("gpus", int),
    CPU: ("cpu_cores", float),
    MEMORY: ("memory_bytes", int),
}
"""Resource → its name in JSON, with its unit, and its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Complete capacity report."""

    where: str
    namespace: str
    nodes: Sequence[NodeCapacity] | None
    """Capacity of each machine; ``None`` if machines could not be read."""
    queues: Sequence[Queue] | None
    unread: tuple[str, ...] = ()
    """One sentence for each kind of object that could not be read."""


def report_capacity(where: str, objects: CapacityObjects, *, gpu_type: str | None, queue: str | None) -> Capacity:
    """Return the selected capacity of a place.

    Raises:
        NotFound: If a type or a queue is unknown.
        Forbidden: If nothing may be read.
    """
    unread = objects.unknown_reasons()
    nodes, queues = node_capacities(objects), queues_of(objects)
    if nodes is None and queues is None:
        raise Forbidden(unread[0], hint="Request the right to list nodes and pods, or localqueues.")
    return Capacity(
        where=where,
        namespace=objects.namespace,
        nodes=None if nodes is None else _with_gpu_type(nodes, gpu_type),
        queues=None if queues is None else _with_name(queues, queue),
        unread=unread,
    )


def _with_gpu_type(nodes: list[NodeCapacity], gpu_type: str | None) -> list[NodeCapacity]:
    found = [node for node in nodes if gpu_type in {None, node.gpu_type}]
    if gpu_type and not found:
        kinds = ", ".join(sorted({node.gpu_type for node in nodes} - {""})) or "none that is named"
        raise NotFound(f"No machine has GPUs of type '{gpu_type}'.", hint=f"There is {kinds}.")
    return found


def _with_name(queues: list[Queue], name: str | None) -> list[Queue]:
    found = [queue for queue in queues if name in {None, queue.name}]
    if name and not found:
        names = ", ".join(queue.name for queue in queues) or "none"
        raise NotFound(f"LocalQueue '{name}' does not exist in this namespace.", hint=f"There is {names}.")
    return found


def tables(capacity: Capacity) -> Iterator[Table]:
    """Yield the tables by machine, by kind of GPU and by queue, without empty ones."""
    if capacity.nodes:
        yield Table(("MACHINE", "GPU-TYPE", "GPUS-FREE", "CPU-FREE", "MEMORY-FREE", "NOTE"), _node_rows(capacity.nodes))
    if kinds := _gpu_type_rows(capacity.nodes or ()):
        yield Table(("GPU-TYPE", "MACHINES", "GPUS-FREE"), kinds)
    if capacity.queues:
        header = ("QUEUE", "CLUSTER-QUEUE", "FLAVOR", "RESOURCE", "USED", "WAITING", "NOTE")
        yield Table(header, [row for queue in capacity.queues for row in _queue_row(queue)])


def _node_rows(nodes: Sequence[NodeCapacity]) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    for node in nodes:
        machine = node.machine
        note = ", ".join(filter(None, (machine.closed, *machine.taints)))
        texts = [_free_of(node, name) for name in (GPU, CPU, MEMORY)]
        cells = [Cell(text) for text in (machine.name, node.gpu_type or NOTHING, *texts)]
        rows.append([*cells, Cell(note or NOTHING, "yellow" if machine.closed else "")])
    return rows


def _free_of(node: NodeCapacity, name: str) -> str:
    """Format a free and a total amount, as in ``3 of 8``."""
    capacity = node.machine.allocatable.get(name, 0)
    if not capacity:
        return NOTHING
    free = NOTHING if node.free is None else number(name, max(0, node.free.get(name, 0)))
    return f"{free} of {number(name, capacity)}"


def _gpu_type_rows(nodes: Sequence[NodeCapacity]) -> list[Sequence[Cell]]:
    with_gpus = [node for node in nodes if node.machine.allocatable.get(GPU)]
    rows: list[Sequence[Cell]] = []
    for kind in dict.fromkeys(node.gpu_type for node in with_gpus):
        nodes_of_kind = [node for node in with_gpus if node.gpu_type == kind]
        frees = [
            max(0, node.free.get(GPU, 0)) for node in nodes_of_kind if node.free is not None and not node.machine.closed
        ]
        free = NOTHING if any(node.free is None for node in nodes_of_kind) else number(GPU, sum(frees))
        capacity = number(GPU, sum(node.machine.allocatable[GPU] for node in nodes_of_kind))
        rows.append([Cell(kind or NOTHING), Cell(str(len(nodes_of_kind))), Cell(f"{free} of {capacity}")])
    return rows


def _queue_row(queue: Queue) -> Iterator[Sequence[Cell]]:
    names = (Cell(queue.name), Cell(queue.cluster_queue))
    ends = (Cell(str(queue.waiting)), Cell(queue.inactive or NOTHING, "yellow" if queue.inactive else ""))
    if not queue.quotas:
        yield [*names, *[Cell(NOTHING)] * 3, *ends]
    for quota in queue.quotas or ():
        used = f"{number(quota.resource, quota.used)} of {number(quota.resource, quota.quota)}"
        yield [*names, Cell(quota.flavor), Cell(quota.resource), Cell(used), *ends]


def capacity_to_dict(capacity: Capacity) -> dict[str, Any]:
    """Return the report as JSON. Parts that could not be read are ``null``."""
    nodes, queues = capacity.nodes, capacity.queues
    return {
        "apiVersion": API_VERSION,
        "kind": "Capacity",
        "where": capacity.where,
        "namespace": capacity.namespace,
        "machines": None if nodes is None else [_node_to_dict(node) for node in nodes],
        "queues": None if queues is None else [_queue_to_dict(queue) for queue in queues],
        "unread": list(capacity.unread),
    }


def _node_to_dict(node: NodeCapacity) -> dict[str, Any]:
    machine = node.machine
    found: dict[str, Any] = {"name": machine.name, "gpu_type": node.gpu_type}
    for resource, (name, kind) in AMOUNTS.items():
        found[name] = kind(machine.allocatable.get(resource, 0) / 1000)
        found[f"{name}_free"] = None if node.free is None else kind(max(0, node.free.get(resource, 0)) / 1000)
    return found | {"closed": machine.closed, "taints": list(machine.taints)}


def _queue_to_dict(queue: Queue) -> dict[str, Any]:
    quotas = None
    if queue.quotas is not None:
        quotas = [
            {"flavor": quota.flavor, "resource": quota.resource, "quota": quota.quota / 1000, "used": quota.used / 1000}
            for quota in queue.quotas
        ]
    return {
        "name": queue.name,
        "cluster_queue": queue.cluster_queue,
        "inactive": queue.inactive,
        "waiting": queue.waiting,
        "shares": quotas,
    }
