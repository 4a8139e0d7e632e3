"""What stands around a job and may be why it does not run: nodes, queues, claims, its operator, events.

A place is asked for several kinds at once. What it refuses is not an error of who asks: it is left out, with a sentence
that says what could not be looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kubectl_ddp.backend import Object


class RelatedKind(StrEnum):
    """Kinds of objects that a job depends on."""

    EVENTS = "events"
    """All of the job's namespace: those of pods that are gone, and of what an operator made, are among them."""
    NODES = "nodes"
    BOUND = "pods of all namespaces"
    """Pods that hold a node's resources, whoever's they are."""
    CLAIMS = "persistentvolumeclaims"
    WORKLOADS = "workloads"
    """Kueue's, of all namespaces: who waits, who holds the quota."""
    LOCAL_QUEUES = "localqueues"
    CLUSTER_QUEUES = "clusterqueues"
    OPERATOR = "pods of the operator"
    """That of the job's engine."""
    QUEUE_CONTROLLER = "pods of Kueue"
    QUOTAS = "resourcequotas"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedObjects:
    """What was found."""

    found: Mapping[RelatedKind, tuple[Object, ...]] = field(default_factory=dict)
    """Kinds that were looked at; empty where there is none, or the place does not know the kind."""
    unseen: tuple[str, ...] = ()
    """A sentence for each kind that could not be looked at."""

    def of(self, kind: RelatedKind) -> tuple[Object, ...]:
        """The objects of a kind; none where nobody looked."""
        return self.found.get(kind, ())

    def was_read(self, kind: RelatedKind) -> bool:
        """Whether the kind was looked at, so that none means that there is none."""
        return kind in self.found
