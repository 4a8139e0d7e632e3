"""Inputs and results of the capacity report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.kueue_quota import Share
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.nodes import Machine
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.node_requirements import GPU_PRODUCT

__all__ = ["GPU", "Gang", "Inventory", "Queue", "Share", "type_of"]


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
class Queue:
    """LocalQueue and its ClusterQueue."""

    name: str
    cluster_queue: str
    inactive: str
    """Reason why the queue accepts no jobs; empty if it is active."""
    waiting: int
    """Number of jobs that wait for quota of the same ClusterQueue."""
    shares: tuple[Share, ...] | None
    """Quotas; ``None`` if the ClusterQueue could not be read."""


@dataclass(frozen=True, slots=True)
class Gang:
    """Job that fits now: number of nodes, and GPUs per node."""

    gpu_type: str
    """Kind of GPU; empty if the machines have no such label, and for jobs without GPUs."""
    gpus: int
    """GPUs per node; 0 for a job without GPUs."""
    nodes: int

    @property
    def total(self) -> int:
        """Total number of GPUs; the number of nodes for a job without GPUs."""
        return self.nodes * max(1, self.gpus)

    def __str__(self) -> str:
        what = f" x {pluralize(self.gpus, 'GPU')}" if self.gpus else ""
        return f"{pluralize(self.nodes, 'node')}{what}"


def type_of(machine: Machine) -> str:
    """Return the kind of a machine's GPUs; empty if it has none or no such label."""
    return machine.labels.get(GPU_PRODUCT, "") if machine.whole.get(GPU) else ""
