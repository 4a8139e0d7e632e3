"""Checks of a job in a cluster, and their inputs: its rendered objects, and the objects that it refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from kubectl_ddp.engines import RUNTIMES
from kubectl_ddp.kube import job_kinds
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
class PreflightFacts:
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


Find = Callable[[Subject, PreflightFacts], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """One check."""

    name: str
    """Subject of its findings."""
    needs: tuple[str, ...]
    """Names of the required fields of :class:`PreflightFacts`. The check runs only if all of them have been read."""
    find: Find

    def __post_init__(self) -> None:
        unknown = set(self.needs) - {field.name for field in fields(PreflightFacts)}
        if unknown:
            raise ValueError(f"check {self.name} needs {unknown}, which are not facts")

    def __call__(self, subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
        """Yield the findings, or the reason why a fact could not be read; nothing if a fact was not requested."""
        unread = [fact for name in self.needs if isinstance(fact := getattr(facts, name), Unknown)]
        if not unread:
            yield from (replace(finding, subject=self.name) for finding in self.find(subject, facts))
        elif why := next((fact.why for fact in unread if fact.why), ""):
            yield Finding(Severity.UNKNOWN, why, subject=self.name)


def subject_of(spec: JobSpec, objects: Sequence[Object], namespace: str) -> Subject:
    """Return the subject of the checks for a rendered job.

    Args:
        spec: Job specification, completely resolved.
        objects: Objects rendered from it.
        namespace: Namespace in which they will be created.
    """
    root = job_kinds.root_of(list(objects))
    stores = [item["spec"]["template"] for item in objects if item["kind"] == "Job" and item is not root]
    return Subject(
        spec=spec,
        namespace=namespace,
        worker=_worker(root, objects),
        store=next(iter(stores), None),
        made=frozenset((item["kind"], item["metadata"]["name"]) for item in objects),
    )


def _worker(root: Object, objects: Sequence[Object]) -> Object:
    holder = next((item for item in objects if item["kind"] in RUNTIMES), root)
    template: Object = job_kinds.at(holder, job_kinds.engine_of(root).template)
    return template


def pods_of(subject: Subject) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the pod specifications of a worker and of the store; None for a job without a store."""
    return subject.worker["spec"], subject.store["spec"] if subject.store else None


def claims(subject: Subject) -> dict[str, bool]:
    """Return name of each claim that a worker mounts → True if it writes there."""
    found: dict[str, bool] = {}
    for volume in subject.worker["spec"].get("volumes") or ():
        if claim := volume.get("persistentVolumeClaim"):
            name = str(claim["claimName"])
            found[name] = found.get(name, False) or not claim.get("readOnly", False)
    return found


def secrets(subject: Subject) -> dict[str, frozenset[str]]:
    """Return name of each Secret that a worker requires → names of the required entries."""
    return _named(subject, "Secret", "secret", "secretName", "secretRef", "secretKeyRef")


def config_maps(subject: Subject) -> dict[str, frozenset[str]]:
    """Return name of each ConfigMap that a worker requires → names of the required entries, without the script's
    ConfigMap.
    """
    return _named(subject, "ConfigMap", "configMap", "name", "configMapRef", "configMapKeyRef")


def _named(subject: Subject, kind: str, volume: str, key: str, ref: str, key_ref: str) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    pod = subject.worker["spec"]
    for source, entry in _references(pod, kind, volume, key, ref, key_ref):
        if (kind, source) not in subject.made:
            found[source] = found.get(source, frozenset()) | entry
    return found


def _references(
    pod: Mapping[str, Any], kind: str, volume: str, key: str, ref: str, key_ref: str
) -> Iterator[tuple[str, frozenset[str]]]:
    for secret in pod.get("imagePullSecrets") or () if kind == "Secret" else ():
        yield str(secret["name"]), frozenset()
    for source in pod.get("volumes") or ():
        if volume in source:
            yield str(source[volume][key]), frozenset()
    for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
        for source in container.get("envFrom") or ():
            if ref in source:
                yield str(source[ref]["name"]), frozenset()
        for variable in container.get("env") or ():
            if named := (variable.get("valueFrom") or {}).get(key_ref):
                yield str(named["name"]), frozenset({str(named["key"])})
