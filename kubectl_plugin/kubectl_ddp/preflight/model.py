"""Checks of a job in a cluster, and their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.rbac.rights import Right
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Job to submit: its specification and the pods it results in."""

    spec: JobSpec
    namespace: str
    worker: Object
    """Pod template of the workers."""
    store: Object | None
    """Pod template of the store; None for a job of torchrun."""
    made: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of the objects created with the job, which need not exist before."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Fact that could not be read, with the reason as a sentence; the reason is empty if it was not requested."""

    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """State of a cluster that determines if a job can run in it: objects as read from the API server."""

    nodes: Sequence[Object] | Unknown = Unknown()
    grows: bool | Unknown = Unknown()
    """True if an autoscaler adds machines for waiting pods."""
    claims: Mapping[str, Object | None] | Unknown = Unknown()
    """Name of a PersistentVolumeClaim that the job mounts → the claim, ``None`` if it does not exist."""
    secrets: Mapping[str, frozenset[str] | None] | Unknown = Unknown()
    """Name of a Secret that the job uses → names of its entries."""
    config_maps: Mapping[str, frozenset[str] | None] | Unknown = Unknown()
    account: Object | Unknown | None = Unknown()
    """Service account of the pods."""
    priority: Object | Unknown | None = Unknown()
    """PriorityClass of the job."""
    quotas: Sequence[Object] | Unknown = Unknown()
    """ResourceQuotas of the namespace."""
    policies: Sequence[Object] | Unknown = Unknown()
    """NetworkPolicies of the namespace."""
    local_queues: Sequence[Object] | Unknown = Unknown()
    """LocalQueues of the namespace; empty without Kueue."""
    has_kueue: bool = True
    queue_priority: Object | Unknown | None = Unknown()
    """WorkloadPriorityClass of the job."""
    pending: Sequence[Object] | Unknown = Unknown()
    """Workloads that wait in the job's ClusterQueue, the next one first."""
    frameworks: frozenset[str] | Unknown = Unknown()
    """Kinds that Kueue is configured to manage, as in ``batch/job``."""
    has_scheduling_group: bool | Unknown = Unknown()
    """True if the engine's pods may name the group of ``--gang native``."""
    controller: Sequence[Object] | Unknown = Unknown()
    """Pods of the controller, which is optional."""
    rights: Sequence[Right] | Unknown = Unknown()
    """Rights that submit requires and the user lacks."""
    rights_hint: str = ""
    """Suggestion for obtaining the missing rights."""
    refused: Mapping[str, str] | Unknown = Unknown()
    """Object → reason for which the API server rejects it in a dry run. Accepted objects are left out."""


T = TypeVar("T")


def read(fact: T | Unknown) -> T:
    """Return a fact that the check declared in its ``needs``. Raises TypeError if it was not read."""
    if isinstance(fact, Unknown):
        raise TypeError("this fact was not read; the check must name it among its needs")
    return fact


Find = Callable[[Subject, Facts], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    """Subject of its findings."""
    needs: tuple[str, ...]
    """Names of the required fields of :class:`Facts`. The check runs only if all of them have been read."""
    find: Find

    def __post_init__(self) -> None:
        unknown = set(self.needs) - {each.name for each in fields(Facts)}
        if unknown:
            raise ValueError(f"check {self.name} needs {unknown}, which are not facts")

    def __call__(self, subject: Subject, facts: Facts) -> Iterator[Finding]:
        """Yield the findings, or the reason why a fact could not be read; nothing if a fact was not requested."""
        unread = [fact for name in self.needs if isinstance(fact := getattr(facts, name), Unknown)]
        if not unread:
            yield from (replace(finding, subject=self.name) for finding in self.find(subject, facts))
        elif why := next((fact.why for fact in unread if fact.why), ""):
            yield Finding(Severity.UNKNOWN, why, subject=self.name)
