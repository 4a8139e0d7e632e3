"""Objects that may explain why a job does not run: nodes, queues, claims, its operator, events.

Several kinds are read together. A kind that may not be read raises no error: it is skipped, and a sentence reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kubectl_ddp.kube.objects import Object


class RelatedKind(StrEnum):
    """Kinds of objects that a job depends on."""

    EVENTS = "events"
    """All events of the job's namespace, including those of deleted pods and of objects that an operator created."""
    NODES = "nodes"
    BOUND = "pods of all namespaces"
    """Pods of any owner that hold resources of a node."""
    CLAIMS = "persistentvolumeclaims"
    WORKLOADS = "workloads"
    """Kueue's Workloads of all namespaces, for the jobs that hold quota."""
    LOCAL_QUEUES = "localqueues"
    CLUSTER_QUEUES = "clusterqueues"
    OPERATOR = "pods of the operator"
    """Pods of the operator of the job's engine."""
    QUEUE_CONTROLLER = "pods of Kueue"
    QUOTAS = "resourcequotas"
    POLICIES = "networkpolicies"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedObjects:
    """Objects that were read."""

    found: Mapping[RelatedKind, tuple[Object, ...]] = field(default_factory=dict)
    """Kind → objects. Empty if none exist, or if the place does not have the kind."""
    unseen: tuple[str, ...] = ()
    """One sentence for each kind that could not be read."""

    def of(self, kind: RelatedKind) -> tuple[Object, ...]:
        """Return the objects of a kind; empty if the kind was not read."""
        return self.found.get(kind, ())

    def was_read(self, kind: RelatedKind) -> bool:
        """Return whether the kind was read, so that an empty result means that no such object exists."""
        return kind in self.found
