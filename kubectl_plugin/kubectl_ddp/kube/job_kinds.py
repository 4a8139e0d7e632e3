"""Reading and changing root objects, the same for all engines, and the fields of a DDPJob.

Conditions are translated to those of the PyTorchJob: Succeeded, Failed, Suspended, Running, Restarting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

from ddp_trainer.common.constants import GROUP, Annotation
from kubectl_ddp.engines import DEFAULT_ENGINE, ENGINES, RUNTIMES, EngineKind, Path
from kubectl_ddp.kube.objects import Object, condition_of

API_VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "DDPJob"
PLURAL: Final = "ddpjobs"
HEADER: Final = {"apiVersion": API_VERSION, "kind": KIND}
METADATA: Final = ("name", "namespace")
"""Keys of a job that are below ``metadata``; all others are below ``spec``."""
KUBECTLS: Final = ("labels", "annotations")
"""Further keys of ``metadata`` in a file, which only ``kubectl apply`` uses."""
SUSPEND: Final = "suspend"
"""Field of the specification: true for a job without pods."""
REPLICAS: Final = "replicas"
"""Field of the specification: number of nodes within the bounds of ``nnodes``, set by ``kubectl scale``."""
CONTROLS: Final = (SUSPEND, REPLICAS)
"""Fields of the specification that change a running job. A job file does not have them."""
CODE: Final = f"{GROUP}/code"
"""Annotation with the hash of the code that the submitter sends, in ConfigMaps that the DDPJob owns."""


def owner_of(item: Object) -> str | None:
    """Return the name of the DDPJob that an object was made for; None without one."""
    owners = item["metadata"].get("ownerReferences") or ()
    names = (
        str(owner["name"]) for owner in owners if (owner.get("apiVersion"), owner.get("kind")) == (API_VERSION, KIND)
    )
    return next(names, None)


def why_no_root(job: Object) -> str | None:
    """Return a sentence about a DDPJob for which the controller has made no objects yet; None if it has."""
    status, name = job.get("status") or {}, f"The {KIND} '{job['metadata']['name']}'"
    if status.get("root"):
        return None
    valid = condition_of(job, "Valid")
    if valid.get("status") == "False":
        return f"{name} is not valid: {valid.get('message')}"
    if (job.get("spec") or {}).get(SUSPEND):
        return f"{name} is suspended, and has no objects yet."
    return f"{name} has no objects yet: the controller has not made them."


def owner_uids(item: Object) -> set[str]:
    """Return the uids of the owners of an object."""
    return {str(owner["uid"]) for owner in item["metadata"].get("ownerReferences") or ()}


def owner_reference(job: Object) -> Mapping[str, Any]:
    """Return the owner reference of an object that is to be deleted with a DDPJob or a TrainJob."""
    metadata = job["metadata"]
    names = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}
    return {**names, "controller": False}


Condition = Mapping[str, Any]


def kind_of(item: Object) -> EngineKind | None:
    """Return the engine of an object; ``None`` if it is not a root object. A Job without our specification, such as the
    store's, belongs to another job.
    """
    for engine in ENGINES.values():
        if (item.get("apiVersion"), item.get("kind")) == (engine.api_version, engine.kind):
            is_ours = engine.product or Annotation.SPEC in (item["metadata"].get("annotations") or {})
            return engine if is_ours else None
    return None


def engine_of(job: Object) -> EngineKind:
    """Return the engine of a root object."""
    return kind_of(job) or ENGINES[DEFAULT_ENGINE]


def root_of(objects: list[Object]) -> Object:
    """Return the root object of a rendered job. Raises ValueError unless there is exactly one."""
    [root] = [item for item in objects if kind_of(item) is not None]
    return root


def has_dependency(item: Object, objects: Sequence[Object]) -> bool:
    """Return whether the API server takes an object only after another one of the same job, so not in a dry run.

    A root needs its runtime, and a PodGroup of Kubernetes' own gang its Workload.
    """
    needed = {"Workload"} if item["kind"] == "PodGroup" else RUNTIMES.keys() if kind_of(item) else set()
    return any(other["kind"] in needed for other in objects)


def conditions(job: Object) -> dict[str, Condition]:
    """Return the conditions of a root object that are true, by the PyTorchJob's type."""
    root, status = engine_of(job), job.get("status") or {}
    found: dict[str, Condition] = {
        root.conditions[item["type"]]: item
        for item in status.get("conditions") or ()
        if item.get("status") == "True" and item["type"] in root.conditions
    }
    if root.active and running(status, root.active) and "Suspended" not in found:
        found.setdefault("Running", {"type": "Running", "status": "True"})
    return found


def running(status: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """Return the number at a path of a status, summed over lists on the path; 0 if missing."""
    found: list[Any] = [status]
    for key in path:
        found = [item.get(key) for item in found if isinstance(item, Mapping)]
        found = [one for item in found for one in (item if isinstance(item, list) else [item])]
    return sum(item for item in found if isinstance(item, int))


def is_suspend_requested(job: Object) -> bool:
    """Return whether the job's specification suspends it."""
    return bool(at(job, engine_of(job).suspend))


def desired_nodes(job: Object) -> int:
    """Return the number of worker pods in the job's specification, spares included."""
    nodes = (job["metadata"].get("annotations") or {}).get(Annotation.NODES, "")
    if is_of_cluster_runtime(job) and nodes.isdecimal():
        return int(nodes)
    return int(at(job, engine_of(job).nodes[0]) or 1)


def is_of_cluster_runtime(job: Object) -> bool:
    """Return whether the job is a TrainJob of a ClusterTrainingRuntime, whose size an annotation changes."""
    return bool(at(job, ("spec", "runtimeRef", "kind")) == "ClusterTrainingRuntime")


def is_scalable(job: Object) -> bool:
    """Return whether the number of worker pods can change while the job runs, without a feature gate."""
    return engine_of(job).is_scalable or is_of_cluster_runtime(job)


def pods_patch(job: Object, pods: int) -> Object:
    """Return the merge patch that sets the number of worker pods, spares included."""
    if is_of_cluster_runtime(job):
        return {"metadata": {"annotations": {Annotation.NODES: str(pods)}}}
    patch: Object = {}
    for path in engine_of(job).nodes:
        depth = next((number for number, key in enumerate(path) if isinstance(key, int)), 0)
        if depth and at(patch, path[:depth]) is None:  # a merge patch replaces a list as a whole
            put(patch, path[:depth], deepcopy(at(job, path[:depth])))
        put(patch, path, pods)
    return patch


def bounds(job: Object) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes with which the job was submitted."""
    elastic = (job.get("spec") or {}).get("elasticPolicy") or {}
    if elastic:
        desired = desired_nodes(job)
        return int(elastic.get("minReplicas") or desired), int(elastic.get("maxReplicas") or desired)
    least, _, most = str(submitted_spec(job).get("nnodes") or desired_nodes(job)).partition(":")
    return int(least), int(most or least)


def pod_count(job: Object, nodes: int) -> int:
    """Return the number of worker pods for a number of nodes: spares exist beside the maximum of nodes only."""
    return nodes + spares(job) if nodes == bounds(job)[1] else nodes


def spares(job: Object) -> int:
    """Return the number of spares with which the job was submitted."""
    text = str(submitted_spec(job).get("spares") or 0)
    return int(text) if text.isdecimal() else 0


def uses_torchrun(job: Object) -> bool:
    """Return whether the image's torchrun starts the ranks: the job has no store."""
    return submitted_spec(job).get("launcher") == "torchrun"


def has_metrics(job: Object) -> bool:
    """Return whether the worker pods serve metrics: those of torchrun do where the runtime image is mounted."""
    return not uses_torchrun(job) or bool(submitted_spec(job).get("runtimeImage"))


def max_restarts(job: Object) -> int | None:
    """Return the number of restarts that the job may use; None if it was not submitted by this program."""
    text = str(submitted_spec(job).get("maxRestarts", ""))
    return int(text) if text.isdecimal() else None


def processes_per_node(job: Object) -> int:
    """Return the number of training processes per pod. ``auto`` and other words, which we never write, count as 1."""
    text = str((job.get("spec") or {}).get("nprocPerNode") or submitted_spec(job).get("nproc") or 1)
    return max(1, int(text)) if text.isdecimal() else 1


def at(item: Any, path: Path) -> Any:
    """Return the value at a path of an object; ``None`` if missing."""
    for key in path:
        if isinstance(key, int):
            item = item[key] if isinstance(item, list) and len(item) > key else None
        else:
            item = item.get(key) if isinstance(item, Mapping) else None
    return item


def put(item: Object, path: Path, value: Any) -> None:
    """Set the value at a path of an object. Missing maps on the path are created."""
    *way, last = path
    place: Any = item
    for key in way:
        place = place[key] if isinstance(key, int) else place.setdefault(key, {})
    place[last] = value


def submitted_spec(job: Object) -> Mapping[str, Any]:
    """Return the specification with which the job was submitted; empty if missing."""
    return json_annotation(job, Annotation.SPEC)


def json_annotation(job: Object, name: Annotation) -> Mapping[str, Any]:
    """Return the JSON object in an annotation of a root object; empty if missing or malformed."""
    return _json_object((job["metadata"].get("annotations") or {}).get(name, ""))


@lru_cache(maxsize=4)
def _json_object(text: str) -> Mapping[str, Any]:
    """Parse an annotation once for all fields of one job. Few are kept, because a text may have 256 KiB."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
