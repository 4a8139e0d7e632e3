"""What is free on each machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kubectl_ddp.capacity.model import type_of
from kubectl_ddp.checks.nodes import Machine, ScheduledPod, used
from kubectl_ddp.checks.quantities import Amounts, subtract
from kubectl_ddp.checks.scheduler_filters import written


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """One machine."""

    name: str
    gpu_type: str
    whole: Amounts
    """What pods may take of it altogether."""
    free: Amounts | None
    """What they have left; ``None`` where pods may not be read."""
    closed: str
    """Why no pod can be placed on it just now; empty where it takes some."""
    taints: tuple[str, ...]
    """Those that keep jobs away which do not tolerate them."""


def node_capacities(machines: Sequence[Machine], occupants: Sequence[ScheduledPod] | None) -> list[NodeCapacity]:
    """Every machine, in the order given."""
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
