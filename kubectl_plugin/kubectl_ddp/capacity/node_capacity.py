"""Free capacity of each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubectl_ddp.capacity.model import type_of
from kubectl_ddp.preflight.nodes import Machine, ScheduledPod, used
from kubectl_ddp.preflight.quantities import Amounts, subtract
from kubectl_ddp.preflight.scheduler_filters import written


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """Capacity of one machine."""

    name: str
    gpu_type: str
    whole: Amounts
    """Allocatable resources."""
    free: Amounts | None
    """Resources that pods have not requested; ``None`` if pods could not be read."""
    closed: str
    """Reason why the machine accepts no pods now; empty if it does."""
    taints: tuple[str, ...]
    """Taints that repel pods without a matching toleration."""


def node_capacities(machines: Sequence[Machine], occupants: Sequence[ScheduledPod] | None) -> list[NodeCapacity]:
    """Return the capacity of every machine, in the given order."""
    taken_of = used(occupants or ())
    return [
        NodeCapacity(
            name=machine.name,
            gpu_type=type_of(machine),
            whole=machine.whole,
            free=None if occupants is None else subtract(machine.whole, taken_of.get(machine.name, {})),
            closed=machine.closed,
            taints=tuple(written(taint) for taint in machine.taints),
        )
        for machine in machines
    ]
