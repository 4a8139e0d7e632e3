"""Parser of manifest files: finds the objects that create pods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.ddpjob import HEADER
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.lint.accessors import mapping, mappings, number
from kubectl_ddp.lint.model import Pods, Workload
from kubectl_ddp.lint.train_job import is_trainer, lay_over
from kubectl_ddp.spec.serialization import HEADER as EARLIER_HEADER

_TEMPLATE_KINDS: Final = ("Job", "StatefulSet", "Deployment", "ReplicaSet", "DaemonSet")
_REPLICAS: Final = "ReplicaSpecs"
"""Suffix of the keys under which Kubeflow's operators list templates by role, such as pytorchReplicaSpecs."""
_RUNTIMES: Final = ("TrainingRuntime", "ClusterTrainingRuntime")


def parse_manifest(name: str, text: str) -> list[Object]:
    """Return the objects of a file, including the items of Lists.

    Raises:
        UsageError: If the text is not YAML or contains no Kubernetes objects.
    """
    try:
        found = [each for each in yaml.safe_load_all(text) if each is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UsageError(f"{name}{where} is not valid YAML: {problem}.", hint="Correct the line.") from None
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be a manifest.", hint="Name another file.") from None
    except ValueError as error:  # an invalid date
        raise UsageError(f"{name} is not valid YAML: {error}.", hint="Put the value into quotes.") from None
    objects = [item for each in found for item in _unpacked(each)]
    if not objects or not all(
        isinstance(each, dict) and each.get("apiVersion") and each.get("kind") for each in objects
    ):
        raise UsageError(
            f"{name} holds no Kubernetes objects: apiVersion and kind are missing.",
            hint=f"Name a manifest, or a job file, which begins with 'apiVersion: {HEADER['apiVersion']}'.",
        )
    return objects


def _unpacked(document: Any) -> list[Any]:
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and "items" in document:
        items = document["items"]
        return items if isinstance(items, list) else [items]
    return [document]


def is_job_file(objects: Sequence[Object]) -> bool:
    """Return True if the objects contain a job file of this program."""
    return any(_is_job(each) for each in objects)


def _is_job(item: Object) -> bool:
    return {key: item.get(key) for key in HEADER} in (HEADER, EARLIER_HEADER)


def find_workloads(objects: Sequence[Object]) -> list[Workload]:
    """Return the objects that create pods, each with the other objects of the file."""
    found = [(each, tuple(_pods(each, objects))) for each in objects if not _is_laid_under(each, objects)]
    return [
        Workload(document=document, pods=pods, beside=tuple(each for each in objects if each is not document))
        for document, pods in found
        if pods
    ]


def without_pods(objects: Sequence[Object]) -> list[str]:
    """Return the TrainJobs, such as ``TrainJob/train``, whose runtime, which defines their pods, is not in the file."""
    runtimes = {_name_of(each) for each in objects if each.get("kind") in _RUNTIMES}
    return [
        f"TrainJob/{mapping(each.get('metadata')).get('name', '?')}"
        for each in objects
        if each.get("kind") == "TrainJob" and _runtime_of(each) not in runtimes
    ]


def unknown_kinds(objects: Sequence[Object]) -> list[str]:
    """Return the kinds, such as ``Job of batch.volcano.sh/v1alpha1``, that have containers in a form not known here."""
    return [
        f"{each['kind']} of {each['apiVersion']}"
        for each in objects
        if not any(pods.containers for pods in _pods(each, objects)) and _has_containers(each.get("spec"))
    ]


def _has_containers(item: object) -> bool:
    if isinstance(item, Mapping):
        return bool(item.get("containers")) or any(map(_has_containers, item.values()))
    return isinstance(item, list) and any(map(_has_containers, item))


def _runtime_of(train_job: Object) -> object:
    return mapping(mapping(train_job.get("spec")).get("runtimeRef")).get("name")


def _pods(document: Object, objects: Sequence[Object]) -> Iterator[Pods]:
    spec, kind = mapping(document.get("spec")), document.get("kind")
    if _is_job(document):
        return
    if kind == "Pod":
        yield Pods(role="", count=1, metadata=mapping(document.get("metadata")), spec=spec)
    elif kind == "CronJob":
        yield _of_template("", mapping(mapping(spec.get("jobTemplate")).get("spec")))
    elif kind == "JobSet":
        yield from _of_job_set(spec)
    elif kind in _RUNTIMES:
        yield from _of_job_set(*_inside_runtime(document))
    elif kind == "TrainJob":
        yield from _of_train_job(document, objects)
    elif kind in _TEMPLATE_KINDS or mapping(mapping(spec.get("template")).get("spec")).get("containers"):
        yield _of_template("", spec)
    else:
        for key, roles in spec.items():
            if str(key).endswith(_REPLICAS):
                yield from (_of_template(role, mapping(each)) for role, each in mapping(roles).items())


def _of_job_set(spec: Mapping[str, Any], nodes: int | None = None) -> Iterator[Pods]:
    jobs = mappings(spec.get("replicatedJobs"))
    for each in jobs:
        inside = mapping(mapping(each.get("template")).get("spec"))
        role = str(each.get("name", "")) if len(jobs) > 1 else ""
        yield _of_template(role, inside, number(each.get("replicas"), 1), nodes if is_trainer(each, jobs) else None)


def _of_train_job(train_job: Object, objects: Sequence[Object]) -> Iterator[Pods]:
    runtime = next((each for each in objects if _is_laid_under(each, [train_job])), None)
    if runtime is not None:
        inside, nodes = _inside_runtime(runtime)
        own = mapping(mapping(train_job.get("spec")).get("trainer")).get("numNodes")
        yield from _of_job_set(lay_over(inside, train_job), nodes if own is None else number(own, 1))


def _is_laid_under(document: Object, objects: Sequence[Object]) -> bool:
    """Return True for a runtime that a TrainJob of these objects uses: its pods are those of the TrainJob."""
    return document.get("kind") in _RUNTIMES and any(
        each.get("kind") == "TrainJob" and _runtime_of(each) == _name_of(document) for each in objects
    )


def _inside_runtime(runtime: Object) -> tuple[Mapping[str, Any], int | None]:
    """Return the JobSet of a runtime, and its number of nodes."""
    spec = mapping(runtime.get("spec"))
    nodes = mapping(spec.get("mlPolicy")).get("numNodes")
    return mapping(mapping(spec.get("template")).get("spec")), None if nodes is None else number(nodes, 1)


def _name_of(document: Object) -> object:
    return mapping(document.get("metadata")).get("name")


def _of_template(role: str, spec: Mapping[str, Any], times: int = 1, nodes: int | None = None) -> Pods:
    counts = [spec.get(key) for key in ("replicas", "parallelism", "completions")]
    count = next((number(each, 1) for each in counts if each is not None), 1) if nodes is None else nodes
    template = mapping(spec.get("template"))
    return Pods(
        role=role, count=count * times, metadata=mapping(template.get("metadata")), spec=mapping(template.get("spec"))
    )
