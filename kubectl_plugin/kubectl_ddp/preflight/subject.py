"""Subject of the checks from the rendered objects of a job, and the objects that it refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubectl_ddp.engines import RUNTIMES
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import Subject
from kubectl_ddp.spec.model import JobSpec


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
    for each in pod.get("imagePullSecrets") or () if kind == "Secret" else ():
        yield str(each["name"]), frozenset()
    for each in pod.get("volumes") or ():
        if volume in each:
            yield str(each[volume][key]), frozenset()
    for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
        for source in container.get("envFrom") or ():
            if ref in source:
                yield str(source[ref]["name"]), frozenset()
        for variable in container.get("env") or ():
            if named := (variable.get("valueFrom") or {}).get(key_ref):
                yield str(named["name"]), frozenset({str(named["key"])})
