"""Pods of a TrainJob: the templates of its runtime, with what the TrainJob lays over them.

:func:`lay_over` returns the JobSet that Kubeflow Trainer makes of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.lint.accessors import mapping, mappings

_TRAINER: Final = "node"
"""Name of the job and of the container of the nodes; other jobs of a runtime fetch data and models before."""
_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
"""Label of the job that a TrainJob's trainer is laid over, whatever its name is."""
_OF_CONTAINER: Final = {
    "image": "image",
    "command": "command",
    "args": "args",
    "env": "env",
    "resourcesPerNode": "resources",
}
"""Field of a TrainJob's trainer → field of the container."""
_REPLACED: Final = frozenset({"resources", "command", "args"})

Patch = Mapping[str, Any]


def is_trainer(job: Mapping[str, Any], jobs: list[Mapping[str, Any]]) -> bool:
    """Return True for the job of a runtime whose pods are the nodes."""
    labels = mapping(mapping(mapping(job.get("template")).get("metadata")).get("labels"))
    return len(jobs) == 1 or job.get("name") == _TRAINER or labels.get(_STEP) == "trainer"


def lay_over(job_set: Mapping[str, Any], train_job: Object) -> dict[str, Any]:
    """Return the specification of a runtime's JobSet with the trainer and the patches of a TrainJob."""
    spec = mapping(train_job.get("spec"))
    jobs = mappings(job_set.get("replicatedJobs"))
    laid: list[Mapping[str, Any]] = []
    for job in jobs:
        inside = mapping(mapping(job.get("template")).get("spec"))
        template = mapping(inside.get("template"))
        if is_trainer(job, jobs):
            template = _merged(template, _of_trainer(template, mapping(spec.get("trainer"))))
        for patch in _patches(spec, job.get("name")):
            template = _merged(template, patch)
        laid.append({**job, "template": {**mapping(job.get("template")), "spec": {**inside, "template": template}}})
    return {**job_set, "replicatedJobs": laid}


def _of_trainer(template: Mapping[str, Any], trainer: Mapping[str, Any]) -> Patch:
    names = [each.get("name") for each in mappings(mapping(template.get("spec")).get("containers"))]
    name = _TRAINER if _TRAINER in names or not names else names[0]
    fields = {ours: trainer[key] for key, ours in _OF_CONTAINER.items() if trainer.get(key)}
    return {"spec": {"containers": [{"name": name, **fields}]}}


def _patches(spec: Mapping[str, Any], name: object) -> Iterator[Patch]:
    """Yield the patches of a job's pods, from ``podTemplateOverrides`` and ``runtimePatches``."""
    for each in mappings(spec.get("podTemplateOverrides")):
        targets = mappings(each.get("targetJobs"))
        if not targets or name in [target.get("name") for target in targets]:
            yield each
    for each in mappings(spec.get("runtimePatches")):
        inside = mapping(mapping(mapping(each.get("trainingRuntimeSpec")).get("template")).get("spec"))
        for job in mappings(inside.get("replicatedJobs")):
            if job.get("name") == name:
                yield mapping(mapping(mapping(job.get("template")).get("spec")).get("template"))


def _merged(base: Any, patch: Any, key: str = "") -> Any:
    """Return a value with a patch of Kubernetes' strategic merge: maps by key, lists of named items by name."""
    if isinstance(base, Mapping) and isinstance(patch, Mapping) and key not in _REPLACED:
        return {**base, **{name: _merged(base.get(name), value, name) for name, value in patch.items()}}
    olds, news = mappings(base), mappings(patch)
    if not news or key in _REPLACED:
        return patch
    ident = "mountPath" if key == "volumeMounts" else "name"
    laid = {each.get(ident): each for each in news if each.get(ident)}
    kept = [_merged(old, laid.pop(old.get(ident), {})) for old in olds]
    return [*kept, *laid.values(), *(each for each in news if not each.get(ident))]
