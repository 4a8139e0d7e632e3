"""What a check finds, and what it looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, TypeVar

from kubectl_ddp.backend import Object
from kubectl_ddp.rights.model import Right
from kubectl_ddp.spec.model import JobSpec


class Status(StrEnum):
    """How a check went; the words of ``ddp-launch preflight``."""

    OK = "ok"
    SKIP = "skip"
    """It could not look."""
    WARN = "warn"
    """The job has to wait, or is probably not what is meant."""
    FAIL = "fail"
    """The job cannot run here, however long one waits."""


WORST: Final = (Status.FAIL, Status.WARN, Status.SKIP, Status.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about a job in a cluster."""

    check: str
    status: Status
    message: str
    hint: str = ""
    """What to do about it."""

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A job on its way into a cluster: what was said, and the pods it comes to."""

    spec: JobSpec
    namespace: str
    worker: Object
    """Pod template of the workers."""
    store: Object
    """Pod template of the store."""
    made: frozenset[tuple[str, str]] = frozenset()
    """Kind and name of what comes with the job, and so need not be there before."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A question that the API server did not answer, and why in a sentence; empty when nobody asked."""

    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a cluster is at the moment, of that which decides whether a job can run in it: objects as they were read."""

    nodes: Sequence[Object] | Unknown = Unknown()
    pods: Sequence[Object] | Unknown = Unknown()
    """Of all namespaces, those that are not over."""
    grows: bool | Unknown = Unknown()
    """Whether machines are added when pods wait for them."""
    claims: Mapping[str, Object | None] | Unknown = Unknown()
    """Name of a PersistentVolumeClaim that the job mounts → the claim, ``None`` when it is not there."""
    secrets: Mapping[str, frozenset[str] | None] | Unknown = Unknown()
    """Name of a Secret that the job reads → names of its entries."""
    config_maps: Mapping[str, frozenset[str] | None] | Unknown = Unknown()
    account: Object | Unknown | None = Unknown()
    """The service account of the pods."""
    priority: Object | Unknown | None = Unknown()
    """The PriorityClass of the job."""
    quotas: Sequence[Object] | Unknown = Unknown()
    """ResourceQuotas of the namespace."""
    local_queues: Sequence[Object] | Unknown = Unknown()
    """Of the namespace; none where the cluster has no Kueue."""
    has_kueue: bool = True
    queue_priority: Object | Unknown | None = Unknown()
    """The WorkloadPriorityClass of the job."""
    cluster_queues: Sequence[Object] | Unknown = Unknown()
    pending: Sequence[Object] | Unknown = Unknown()
    """Workloads that wait in the job's cluster queue, the next one first."""
    frameworks: frozenset[str] | Unknown = Unknown()
    """Kinds that Kueue is configured to admit, as in ``batch/job``."""
    rights: Sequence[Right] | Unknown = Unknown()
    """What submit needs and the person may not."""
    rights_hint: str = ""
    """What to ask for where something of it is missing."""
    refused: Mapping[str, str] | Unknown = Unknown()
    """Object → why the API server would refuse it, by a dry run; without those that it takes."""


T = TypeVar("T")


def read(fact: T | Unknown) -> T:
    """A fact that a check has named among its needs, and so has been read."""
    if isinstance(fact, Unknown):
        raise TypeError("this fact was not read; the check must name it among its needs")
    return fact


Find = Callable[[Subject, Facts], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at."""

    name: str
    needs: tuple[str, ...]
    """Fields of :class:`Facts`, all of which must have been read."""
    find: Find

    def __post_init__(self) -> None:
        unknown = set(self.needs) - {each.name for each in fields(Facts)}
        if unknown:
            raise ValueError(f"check {self.name} needs {unknown}, which are no facts")

    def __call__(self, subject: Subject, facts: Facts) -> Iterator[Finding]:
        """What it finds; why it could not look; nothing where nobody asked."""
        unread = [fact for name in self.needs if isinstance(fact := getattr(facts, name), Unknown)]
        if not unread:
            yield from self.find(subject, facts)
        elif why := next((fact.why for fact in unread if fact.why), ""):
            yield Finding(self.name, Status.SKIP, why)


def most_severe(findings: Sequence[Finding]) -> Status:
    """The gravest status of all."""
    return min((finding.status for finding in findings), key=WORST.index, default=Status.OK)
