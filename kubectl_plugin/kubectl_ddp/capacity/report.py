"""Capacity report as tables and as versioned JSON for ``-o json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.capacity.model import GPU, NodeCapacity, Queue
from kubectl_ddp.preflight.quantities import number
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.text_table import NOTHING, Cell, Table

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


def tables(capacity: Capacity) -> Iterator[Table]:
    """Yield the tables by machine, by kind of GPU and by queue, without empty ones."""
    if capacity.nodes:
        yield Table(("MACHINE", "GPU-TYPE", "GPUS-FREE", "CPU-FREE", "MEMORY-FREE", "NOTE"), _node_rows(capacity.nodes))
    if kinds := _gpu_type_rows(capacity.nodes or ()):
        yield Table(("GPU-TYPE", "MACHINES", "GPUS-FREE"), kinds)
    if capacity.queues:
        header = ("QUEUE", "CLUSTER-QUEUE", "FLAVOR", "RESOURCE", "USED", "WAITING", "NOTE")
        yield Table(header, [row for queue in capacity.queues for row in _queue(queue)])


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
    whole = node.machine.whole.get(name, 0)
    if not whole:
        return NOTHING
    free = NOTHING if node.free is None else number(name, max(0, node.free.get(name, 0)))
    return f"{free} of {number(name, whole)}"


def _gpu_type_rows(nodes: Sequence[NodeCapacity]) -> list[Sequence[Cell]]:
    with_gpus = [node for node in nodes if node.machine.whole.get(GPU)]
    rows: list[Sequence[Cell]] = []
    for kind in dict.fromkeys(node.gpu_type for node in with_gpus):
        mine = [node for node in with_gpus if node.gpu_type == kind]
        frees = [max(0, node.free.get(GPU, 0)) for node in mine if node.free is not None and not node.machine.closed]
        free = NOTHING if any(node.free is None for node in mine) else number(GPU, sum(frees))
        whole = number(GPU, sum(node.machine.whole[GPU] for node in mine))
        rows.append([Cell(kind or NOTHING), Cell(str(len(mine))), Cell(f"{free} of {whole}")])
    return rows


def _queue(queue: Queue) -> Iterator[Sequence[Cell]]:
    names = (Cell(queue.name), Cell(queue.cluster_queue))
    ends = (Cell(str(queue.waiting)), Cell(queue.inactive or NOTHING, "yellow" if queue.inactive else ""))
    if not queue.quotas:
        yield [*names, *[Cell(NOTHING)] * 3, *ends]
    for each in queue.quotas or ():
        used = f"{number(each.resource, each.used)} of {number(each.resource, each.quota)}"
        yield [*names, Cell(each.flavor), Cell(each.resource), Cell(used), *ends]


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
        found[name] = kind(machine.whole.get(resource, 0) / 1000)
        found[f"{name}_free"] = None if node.free is None else kind(max(0, node.free.get(resource, 0)) / 1000)
    return found | {"closed": machine.closed, "taints": list(machine.taints)}


def _queue_to_dict(queue: Queue) -> dict[str, Any]:
    quotas = None
    if queue.quotas is not None:
        quotas = [
            {"flavor": each.flavor, "resource": each.resource, "quota": each.quota / 1000, "used": each.used / 1000}
            for each in queue.quotas
        ]
    return {
        "name": queue.name,
        "cluster_queue": queue.cluster_queue,
        "inactive": queue.inactive,
        "waiting": queue.waiting,
        "shares": quotas,
    }
