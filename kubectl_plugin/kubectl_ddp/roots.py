"""The four kinds of object that a job can be on a cluster, as a table: what each calls the things that all have.

Pure data and readers of it, so that state, commands and the cluster's backend are written once for all of them. The
vocabulary of conditions is the PyTorchJob's: Succeeded, Failed, Suspended, Running, Restarting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backend import Object

Condition = Mapping[str, Any]
Path = tuple[str | int, ...]
"""Keys and indexes from an object's root to one of its fields."""

POD_JOB: Final[Path] = ("spec", "replicatedJobs", 0, "template", "spec")
"""The batch Job inside of a JobSet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """One kind of root object."""

    engine: str
    """The word for it on the command line."""
    api_version: str
    kind: str
    plural: str
    """The last part of its path on the API server."""
    suspend: Path
    """Whether its pods are to be held back."""
    nodes: tuple[Path, ...]
    """Where the number of worker pods stands; every one of them has to be changed to scale it."""
    is_scalable: bool
    """Whether that number can be changed while it runs."""
    conditions: Mapping[str, str] = field(default_factory=dict)
    """What its own words for conditions mean; those not named are not about the state of the job."""
    active: tuple[str, ...] = ()
    """Where the status counts running pods, for a kind without a condition Running; lists on the way are summed."""
    template: Path = ()
    """The pod template of the workers; of a TrainJob it is the runtime that has one."""

    @property
    def resource(self) -> str:
        """The resource as kubectl prints it, as in ``pytorchjob.kubeflow.org``."""
        return f"{self.kind.lower()}.{self.group}"

    @property
    def group(self) -> str:
        """The API group."""
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
"""By the engine's name, in the order in which a cluster's engines are preferred."""


def kind_of(item: Object) -> Root | None:
    """Which of the four an object is; ``None`` for any other kind. A Job without our specification is a companion."""
    for root in ROOTS.values():
        if (item.get("apiVersion"), item.get("kind")) == (root.api_version, root.kind):
            is_ours = root is not JOB or Annotation.SPEC in (item["metadata"].get("annotations") or {})
            return root if is_ours else None
    return None


def root_of(objects: list[Object]) -> Object:
    """The one object of a rendered job that all others belong to. Raises ValueError unless there is exactly one."""
    [root] = [item for item in objects if kind_of(item) is not None]
    return root


def conditions(job: Object) -> dict[str, Condition]:
    """What is true of a root object, in the PyTorchJob's words."""
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
    """The number at a path of a status, summed over the lists on the way; 0 where there is none."""
    found: list[Any] = [status]
    for key in path:
        found = [item.get(key) for item in found if isinstance(item, Mapping)]
        found = [one for item in found for one in (item if isinstance(item, list) else [item])]
    return sum(item for item in found if isinstance(item, int))


def is_suspend_requested(job: Object) -> bool:
    """Whether the job is told to hold its pods back."""
    return bool(at(job, (kind_of(job) or PYTORCHJOB).suspend))


def desired_nodes(job: Object) -> int:
    """How many worker pods it is told to have."""
    return int(at(job, (kind_of(job) or PYTORCHJOB).nodes[0]) or 1)


def bounds(job: Object) -> tuple[int, int]:
    """Least and largest number of nodes that it was submitted for."""
    elastic = (job.get("spec") or {}).get("elasticPolicy") or {}
    if elastic:
        desired = desired_nodes(job)
        return int(elastic.get("minReplicas") or desired), int(elastic.get("maxReplicas") or desired)
    least, _, most = str(submitted_spec(job).get("nnodes") or desired_nodes(job)).partition(":")
    return int(least), int(most or least)


def processes_per_node(job: Object) -> int:
    """Training processes per pod; the operator takes words too (``auto``), which we never write and count as one."""
    text = str((job.get("spec") or {}).get("nprocPerNode") or submitted_spec(job).get("nproc") or 1)
    return int(text) if text.isdecimal() else 1


def started(job: Object) -> str | None:
    """When its pods were first made: a JobSet and a TrainJob do not say."""
    moment: str | None = (job.get("status") or {}).get("startTime")
    return moment


def at(item: Any, path: Path) -> Any:
    """What stands at a path of an object; ``None`` where there is nothing."""
    for key in path:
        if isinstance(key, int):
            item = item[key] if isinstance(item, list) and len(item) > key else None
        else:
            item = item.get(key) if isinstance(item, Mapping) else None
    return item


def put(item: Object, path: Path, value: Any) -> None:
    """Set what stands at a path of an object; maps on the way are made."""
    *way, last = path
    place: Any = item
    for key in way:
        place = place[key] if isinstance(key, int) else place.setdefault(key, {})
    place[last] = value


def submitted_spec(job: Object) -> Mapping[str, Any]:
    """The specification that the job was submitted with."""
    text = (job["metadata"].get("annotations") or {}).get(Annotation.SPEC, "")
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
