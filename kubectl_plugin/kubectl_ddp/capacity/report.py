"""Capacity report as tables and as versioned JSON for ``-o json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from kubectl_ddp.capacity.largest_job import largest
from kubectl_ddp.capacity.model import GPU, Gang, Queue
from kubectl_ddp.capacity.node_capacity import NodeCapacity
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
    rooms: Sequence[NodeCapacity] | None
    """Capacity of each machine; ``None`` if machines could not be read."""
    gangs: Sequence[Gang] | None
    """Jobs that fit now; ``None`` if machines or pods could not be read."""
    queues: Sequence[Queue] | None
    unread: tuple[str, ...] = ()
    """One sentence for each kind of object that could not be read."""

    @property
    def largest(self) -> Gang | None:
        """The largest job that fits now."""
        return largest(self.gangs or ())


def tables(capacity: Capacity) -> Iterator[Table]:
    """Yield the tables by machine, by kind of GPU and by queue, without empty ones."""
    if capacity.rooms:
        yield Table(("MACHINE", "GPU-TYPE", "GPUS-FREE", "CPU-FREE", "MEMORY-FREE", "NOTE"), _node_rows(capacity.rooms))
    if kinds := _gpu_type_rows(capacity):
        yield Table(("GPU-TYPE", "MACHINES", "GPUS-FREE", "FITS-NOW"), kinds)
    if capacity.queues:
        header = ("QUEUE", "CLUSTER-QUEUE", "FLAVOR", "RESOURCE", "USED", "BORROWABLE", "WAITING", "NOTE")
        yield Table(header, [row for queue in capacity.queues for row in _queue(queue)])


def _node_rows(rooms: Sequence[NodeCapacity]) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    for room in rooms:
        note = ", ".join([*([room.closed] if room.closed else []), *room.taints])
        texts = [_of(room, name) for name in (GPU, CPU, MEMORY)]
        cells = [Cell(text) for text in (room.name, room.gpu_type or NOTHING, *texts)]
        rows.append([*cells, Cell(note or NOTHING, "yellow" if room.closed else "")])
    return rows


def _of(room: NodeCapacity, name: str) -> str:
    """Format a free and a total amount, as in ``3 of 8``."""
    whole = room.whole.get(name, 0)
    if not whole:
        return NOTHING
    free = NOTHING if room.free is None else number(name, max(0, room.free.get(name, 0)))
    return f"{free} of {number(name, whole)}"


def _gpu_type_rows(capacity: Capacity) -> list[Sequence[Cell]]:
    rooms = [room for room in capacity.rooms or () if room.whole.get(GPU)]
    rows: list[Sequence[Cell]] = []
    for kind in dict.fromkeys(room.gpu_type for room in rooms):
        mine = [room for room in rooms if room.gpu_type == kind]
        whole = sum(room.whole[GPU] for room in mine)
        frees = [room.free for room in mine if room.free is not None and not room.closed]
        free = NOTHING if any(room.free is None for room in mine) else number(GPU, sum(_free(each) for each in frees))
        fits = ", ".join(map(_short, best(capacity.gangs or (), kind))) or NOTHING
        rows.append([Cell(kind or NOTHING), Cell(str(len(mine))), Cell(f"{free} of {number(GPU, whole)}"), Cell(fits)])
    return rows


def _free(amounts: Mapping[str, int]) -> int:
    return max(0, amounts.get(GPU, 0))


def _short(gang: Gang) -> str:
    return f"{gang.nodes}x{gang.gpus}"


def best(gangs: Sequence[Gang], kind: str) -> list[Gang]:
    """Return the Pareto-optimal jobs of a kind of GPU by nodes and GPUs per node, with the most GPUs per node first."""
    found: list[Gang] = []
    for gang in sorted((each for each in gangs if each.gpus and each.gpu_type == kind), key=lambda each: -each.gpus):
        if gang.nodes > (found[-1].nodes if found else 0):
            found.append(gang)
    return found


def _queue(queue: Queue) -> Iterator[Sequence[Cell]]:
    names = (Cell(queue.name), Cell(queue.cluster_queue))
    ends = (Cell(str(queue.waiting)), Cell(queue.inactive or NOTHING, "yellow" if queue.inactive else ""))
    if not queue.shares:
        yield [*names, *[Cell(NOTHING)] * 4, *ends]
    for share in queue.shares or ():
        used = f"{number(share.resource, share.used)} of {number(share.resource, share.quota)}"
        borrowable = number(share.resource, share.borrowable) if share.borrowable else NOTHING
        yield [*names, Cell(share.flavor), Cell(share.resource), Cell(used), Cell(borrowable), *ends]


def largest_job_message(capacity: Capacity, submit: str) -> str:
    """Return a sentence with the largest job that fits now and the command that submits it.

    Args:
        capacity: Capacity of the place.
        submit: Command that submits a job of one node without GPUs.
    """
    if capacity.gangs is None:
        return "Which job fits now is not known, as machines and pods may not both be read."
    found = capacity.largest
    if found is None:
        return "No job fits now, not even of one node; less --cpu and --memory per node may."
    kind = f" of type {found.gpu_type}" if found.gpu_type else ""
    flags = f"--nnodes {found.nodes}" + (f" --gpus {found.gpus}" if found.gpus else "")
    told = f"The largest job that fits now: {found}{kind} ('{submit} {flags}')."
    idle = sum(_free(room.free) for room in capacity.rooms or () if room.free is not None and not room.closed)
    if found.gpus or not idle:
        return told
    return f"{told} GPUs are free, but the CPU and memory for a job are not: reduce --cpu and --memory."


def capacity_to_dict(capacity: Capacity) -> dict[str, Any]:
    """Return the report as JSON. Parts that could not be read are ``null``."""
    rooms, gangs, queues = capacity.rooms, capacity.gangs, capacity.queues
    return {
        "apiVersion": API_VERSION,
        "kind": "Capacity",
        "where": capacity.where,
        "namespace": capacity.namespace,
        "largest": None if capacity.largest is None else asdict(capacity.largest),
        "fits": None if gangs is None else [asdict(gang) for gang in gangs],
        "machines": None if rooms is None else [_machine(room) for room in rooms],
        "queues": None if queues is None else [_queue_json(queue) for queue in queues],
        "unread": list(capacity.unread),
    }


def _machine(room: NodeCapacity) -> dict[str, Any]:
    found: dict[str, Any] = {"name": room.name, "gpu_type": room.gpu_type}
    for resource, (name, kind) in AMOUNTS.items():
        found[name] = kind(room.whole.get(resource, 0) / 1000)
        found[f"{name}_free"] = None if room.free is None else kind(max(0, room.free.get(resource, 0)) / 1000)
    return found | {"closed": room.closed, "taints": list(room.taints)}


def _queue_json(queue: Queue) -> dict[str, Any]:
    shares = None
    if queue.shares is not None:
        shares = [
            {"flavor": share.flavor, "resource": share.resource}
            | {name: getattr(share, name) / 1000 for name in ("quota", "used", "borrowable")}
            for share in queue.shares
        ]
    return {
        "name": queue.name,
        "cluster_queue": queue.cluster_queue,
        "inactive": queue.inactive,
        "waiting": queue.waiting,
        "shares": shares,
    }
