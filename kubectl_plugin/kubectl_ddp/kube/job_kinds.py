"""The four kinds of root object that a job can have on a cluster, as a table of their field names.

Pure data, and functions that read it, so that state, commands and the cluster backend are written once for all kinds.
Conditions are translated to those of the PyTorchJob: Succeeded, Failed, Suspended, Running, Restarting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube.objects import Object

Condition = Mapping[str, Any]
Path = tuple[str | int, ...]
"""Keys and indexes from the root of an object to one of its fields."""

POD_JOB: Final[Path] = ("spec", "replicatedJobs", 0, "template", "spec")
"""Path of the batch Job inside a JobSet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Description of one kind of root object."""

    engine: str
    """Value of ``--engine`` for this kind."""
    api_version: str
    kind: str
    plural: str
    """Last part of its path on the API server."""
    suspend: Path
    """Path of the field that suspends the job."""
    nodes: tuple[Path, ...]
    """Paths of the number of worker pods. Scaling must change all of them."""
    is_scalable: bool
    """True if the number of pods can be changed while the job runs."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """Type of this kind's condition → the PyTorchJob's. Other types do not affect the state of the job."""
    active: tuple[str, ...] = ()
    """Path of the number of running pods in the status, for a kind without a condition Running. Lists on the path are
    summed.
    """
    template: Path = ()
    """Path of the pod template of the workers. Empty for a TrainJob, whose runtime has the template."""

    @property
    def resource(self) -> str:
        """Resource as kubectl prints it, as in ``pytorchjob.kubeflow.org``."""
        return f"{self.kind.lower()}.{self.group}"

    @property
    def group(self) -> str:
        """API group."""
        return self.api_version.partition("/")[0]


PYTORCHJOB: Final = Root(
    engine="pytorchjob",
    api_version="kubeflow.org/v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    suspend=("spec", "runPolicy", "suspend"),
    nodes=(("spec", "pytorchReplicaSpecs", "Worker", "replicas"),),
    is_scalable=True,
    conditions={word: word for word in ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")},
    template=("spec", "pytorchReplicaSpecs", "Worker", "template"),
)
TRAINJOB: Final = Root(
    engine="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    suspend=("spec", "suspend"),
    nodes=(("spec", "trainer", "numNodes"),),
    is_scalable=False,
    conditions={"Complete": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"},
    active=("jobsStatus", "active"),
)
JOBSET: Final = Root(
    engine="jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    plural="jobsets",
    suspend=("spec", "suspend"),
    nodes=((*POD_JOB, "parallelism"), (*POD_JOB, "completions")),
    is_scalable=False,
    conditions={"Completed": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"},
    active=("replicatedJobsStatus", "active"),
    template=(*POD_JOB, "template"),
)
JOB: Final = Root(
    engine="job",
    api_version="batch/v1",
    kind="Job",
    plural="jobs",
    suspend=("spec", "suspend"),
    nodes=(("spec", "parallelism"), ("spec", "completions")),
    is_scalable=True,
    conditions={"Complete": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"},
    active=("active",),
    template=("spec", "template"),
)

ROOTS: Final = {root.engine: root for root in (PYTORCHJOB, TRAINJOB, JOBSET, JOB)}
"""Engine → its kind, in the order of preference."""
BEFORE_ROOT: Final = {"TrainingRuntime": (TRAINJOB.api_version, "trainingruntimes")}
"""Kinds that must exist before the root object, with API version and plural."""


def kind_of(item: Object) -> Root | None:
    """Return the kind of an object; ``None`` if it is not a root object. A Job without our specification belongs to
    another job.
    """
    for root in ROOTS.values():
        if (item.get("apiVersion"), item.get("kind")) == (root.api_version, root.kind):
            is_ours = root is not JOB or Annotation.SPEC in (item["metadata"].get("annotations") or {})
            return root if is_ours else None
    return None


def root_of(objects: list[Object]) -> Object:
    """Return the root object of a rendered job. Raises ValueError unless there is exactly one."""
    [root] = [item for item in objects if kind_of(item) is not None]
    return root


def conditions(job: Object) -> dict[str, Condition]:
    """Return the conditions of a root object that are true, by the PyTorchJob's type."""
    root, status = kind_of(job) or PYTORCHJOB, job.get("status") or {}
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
    return bool(at(job, (kind_of(job) or PYTORCHJOB).suspend))


def desired_nodes(job: Object) -> int:
    """Return the number of worker pods in the job's specification."""
    return int(at(job, (kind_of(job) or PYTORCHJOB).nodes[0]) or 1)


def bounds(job: Object) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes with which the job was submitted."""
    elastic = (job.get("spec") or {}).get("elasticPolicy") or {}
    if elastic:
        desired = desired_nodes(job)
        return int(elastic.get("minReplicas") or desired), int(elastic.get("maxReplicas") or desired)
    least, _, most = str(submitted_spec(job).get("nnodes") or desired_nodes(job)).partition(":")
    return int(least), int(most or least)


def processes_per_node(job: Object) -> int:
    """Return the number of training processes per pod. ``auto`` and other words, which we never write, count as 1."""
    text = str((job.get("spec") or {}).get("nprocPerNode") or submitted_spec(job).get("nproc") or 1)
    return int(text) if text.isdecimal() else 1


def started(job: Object) -> str | None:
    """Return the start time of a job; None for a JobSet or a TrainJob, which do not report it."""
    moment: str | None = (job.get("status") or {}).get("startTime")
    return moment


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
    text = (job["metadata"].get("annotations") or {}).get(Annotation.SPEC, "")
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
