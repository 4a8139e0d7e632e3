"""What is read of a place, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kubectl_ddp.backend import Object
from kubectl_ddp.checks.model import Unknown
from kubectl_ddp.checks.nodes import Machine
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.spec.node_requirements import GPU_PRODUCT

__all__ = ["GPU", "Gang", "Inventory", "Queue", "Share", "type_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """Objects of a place as they were read, of that which decides what is free there."""

    namespace: str = ""
    nodes: Sequence[Object] | Unknown
    pods: Sequence[Object] | Unknown
    """Of all namespaces, those that are not over."""
    local_queues: Sequence[Object] | Unknown = ()
    """Kueue's, of the namespace; none where there is no Kueue."""
    cluster_queues: Sequence[Object] | Unknown = ()

    def unknown_reasons(self) -> tuple[str, ...]:
        """A sentence for each kind of object that may not be read."""
        found = (getattr(self, each.name) for each in fields(self))
        return tuple(dict.fromkeys(fact.why for fact in found if isinstance(fact, Unknown) and fact.why))


@dataclass(frozen=True, slots=True)
class Share:
    """What a ClusterQueue may have of one resource of one flavor, in thousandths of its unit."""

    flavor: str
    resource: str
    quota: int
    used: int
    """Of its own quota and of others'."""
    borrowable: int
    """What others of its cohort leave unused and lend, at most."""

    @property
    def free(self) -> int:
        """What a job may have now."""
        return max(0, self.quota - self.used) + self.borrowable


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A LocalQueue, and the ClusterQueue that it leads to."""

    name: str
    cluster_queue: str
    inactive: str
    """Why it takes no jobs; empty when it does."""
    waiting: int
    """Jobs that wait for quota of the same ClusterQueue."""
    shares: tuple[Share, ...] | None
    """``None`` where the ClusterQueue may not be read."""


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that fits now: so many nodes of so many GPUs each."""

    gpu_type: str
    """Empty where machines do not say, and for jobs without GPUs."""
    gpus: int
    """Per node; 0 for a job without."""
    nodes: int

    @property
    def total(self) -> int:
        """GPUs of all nodes; of a job without GPUs its nodes."""
        return self.nodes * max(1, self.gpus)

    def __str__(self) -> str:
        what = f" x {self.gpus} GPU{'s' * (self.gpus != 1)}" if self.gpus else ""
        return f"{self.nodes} node{'s' * (self.nodes != 1)}{what}"


def type_of(machine: Machine) -> str:
    """Which GPUs a machine has; empty where it has none or does not say."""
    return machine.labels.get(GPU_PRODUCT, "") if machine.whole.get(GPU) else ""
