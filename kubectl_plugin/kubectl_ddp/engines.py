"""Engines: kinds of Kubernetes objects that run a job.

Each is an :class:`EngineKind`. :data:`ENGINES` lists them in the order in which ``--engine auto`` prefers them. A kind
can be an engine if a field of it suspends the job, another one holds the number of pods, it has a deadline and a time
after which it is deleted, it reports ``status.conditions``, and it fails the job for exit codes 1-127 and recreates the
pod from 128. Volcano's Job has no field that suspends it.

How to add an engine:

1. Copy :data:`PYTORCHJOB` (a kind with its own pod template) or :data:`JOBSET` (a kind around a batch Job), and its
   template in ``render/templates``. ``conditions`` maps the kind's conditions to those of a PyTorchJob, and
   ``pod_label`` is the label with the job's name that the operator adds to pods.
2. Add the member of :class:`Engine`, and the engine to :data:`ENGINES`.
3. Add the status of a suspended, a running, a failed and a succeeded job to
   ``tests/unit/kubectl_ddp/kube/root_statuses.json``, from real runs.
4. Run ``make docs manifests``, then ``test_job_kinds.py``, ``test_render_engines.py`` and
   ``test_render_examples.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ddp_trainer.common import constants

Path = tuple[str | int, ...]
"""Keys and indexes from the root of an object to one of its fields."""

POD_JOB: Final[Path] = ("spec", "replicatedJobs", 0, "template", "spec")
"""Path of the batch Job inside a JobSet."""

RANDOM_PART: Final = "-00000"
"""End of a pod's name that the Job controller makes, with placeholders."""

JOB_CONDITIONS: Final = {"Complete": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"}
"""Conditions of Kubernetes' Job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One controller."""

    name: str
    """Name for use in a sentence."""
    selector: str
    """Label selector of the operator's pods, the same in its manifests and its chart; empty if it does not run as a
    pod.
    """
    manager: str = ""
    """Value of ``managedBy`` for which the operator acts, like an empty one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Object that must exist before the root object and that has the pod template instead of it."""

    kind: str
    plural: str
    file: str
    """Jinja template of the object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """One kind of root object."""

    name: str
    """Value of ``--engine``."""
    api_version: str
    kind: str
    plural: str
    """Last part of its path on the API server."""
    product: str = ""
    """Name and version of the software that serves the kind; empty if Kubernetes does."""
    least_kubernetes: tuple[int, int] = (0, 0)
    """First release of Kubernetes with all fields that we set."""
    operator: Operator
    """Controller that creates the pods."""

    # -- fields of the root object
    suspend: Path = ("spec", "suspend")
    """Path of the field that suspends the job."""
    managed_by: Path = ("spec", "managedBy")
    """Path of the name of the controller that acts on the object instead of the operator."""
    nodes: tuple[Path, ...]
    """Paths of the number of worker pods. Scaling must change all of them."""
    template: Path
    """Path of the pod template of the workers, in the runtime if there is one."""
    runtime: Runtime | None = None
    conditions: Mapping[str, str] = field(default_factory=lambda: JOB_CONDITIONS)
    """Type of this kind's condition → the PyTorchJob's. Other types do not affect the state of the job."""
    active: tuple[str, ...] = ()
    """Path of the number of running pods in the status, for a kind without a condition Running. Lists on the path are
    summed.
    """
    has_start_time: bool = True
    """True if the status has ``startTime``."""

    # -- pods
    pod_suffix: str
    """Longest suffix of a worker pod's name; ``{index}`` is the index of the pod."""
    pod_label: str
    """Label with the job's name that the operator adds to pods."""

    index_label: str = "batch.kubernetes.io/job-completion-index"
    """Label with the index of a worker's pod, for a Service of the first; empty if the operator creates Services."""

    # -- rendering
    file: str
    """Jinja template of the root object."""
    container: str = constants.CONTAINER
    """Name of the trainer's container."""
    job_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the engine expects on the batch Job inside a set."""
    restart_policy: str | None = "Never"
    """Restart policy of the pod template; None if the operator sets it."""
    has_subdomain: bool = False
    """True if a Service with the job's name provides the pods' DNS names; it is rendered with the job."""

    # -- limits
    is_scalable: bool = False
    """True if the number of pods can always be changed while the job runs."""
    scaling_gate: str = ""
    """Feature gate of the operator that makes the engine scalable; empty if there is none."""
    is_partially_admitted: bool = False
    """True if Kueue may start the job with fewer nodes."""
    ttl_note: str = ""
    """Note on a time to live that does not remove all objects."""

    def first_host(self, job: str) -> str:
        """Return the host name of the first worker, which is the name of its pod without a random part."""
        return job + self.pod_suffix.format(index=0).removesuffix(RANDOM_PART)

    @property
    def resource(self) -> str:
        """Resource as kubectl prints it, as in ``pytorchjob.kubeflow.org``."""
        return f"{self.kind.lower()}.{self.group}"

    @property
    def collection(self) -> str:
        """Resource of rights, as in ``pytorchjobs.kubeflow.org``."""
        return f"{self.plural}.{self.group}"

    @property
    def group(self) -> str:
        """API group."""
        return self.api_version.partition("/")[0]


PYTORCHJOB: Final = EngineKind(
    name="pytorchjob",
    api_version="kubeflow.org/v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    product="Kubeflow's training operator 1.9",
    operator=Operator(
        name="Kubeflow's training operator",
        selector="control-plane=kubeflow-training-operator",
        manager="kubeflow.org/training-operator",
    ),
    suspend=("spec", "runPolicy", "suspend"),
    managed_by=("spec", "runPolicy", "managedBy"),
    nodes=(("spec", "pytorchReplicaSpecs", "Worker", "replicas"),),
    template=("spec", "pytorchReplicaSpecs", "Worker", "template"),
    conditions={word: word for word in ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")},
    pod_suffix="-worker-{index}",
    pod_label="training.kubeflow.org/job-name",
    index_label="",
    file="pytorchjob.yaml.j2",
    restart_policy=None,
    is_scalable=True,
)


TRAINJOB: Final = EngineKind(
    name="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    product="Kubeflow Trainer 2.3",
    operator=Operator(
        name="Kubeflow Trainer",
        selector="app.kubernetes.io/name=trainer",
        manager="trainer.kubeflow.org/trainjob-controller",
    ),
    nodes=(("spec", "trainer", "numNodes"),),
    template=("spec", "template", *POD_JOB, "template"),
    runtime=Runtime(kind="TrainingRuntime", plural="trainingruntimes", file="training-runtime.yaml.j2"),
    active=("jobsStatus", "active"),
    has_start_time=False,
    pod_suffix="-node-0-{index}-00000",
    pod_label="jobset.sigs.k8s.io/jobset-name",
    file="trainjob.yaml.j2",
    container="node",
    job_labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
    ttl_note="ttl removes its JobSet and its pods, but not the TrainJob: Kubeflow Trainer never deletes one.",
)


JOBSET: Final = EngineKind(
    name="jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    plural="jobsets",
    product="JobSet",
    operator=Operator(
        name="JobSet's controller",
        selector="app.kubernetes.io/name=jobset",
        manager="jobset.sigs.k8s.io/jobset-controller",
    ),
    nodes=((*POD_JOB, "parallelism"), (*POD_JOB, "completions")),
    template=(*POD_JOB, "template"),
    conditions={"Completed": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"},
    active=("replicatedJobsStatus", "active"),
    has_start_time=False,
    pod_suffix="-node-0-{index}-00000",
    pod_label="jobset.sigs.k8s.io/jobset-name",
    file="jobset.yaml.j2",
    scaling_gate="ElasticJobSet",
)


INDEXED_JOB: Final = EngineKind(
    name="job",
    api_version="batch/v1",
    kind="Job",
    plural="jobs",
    least_kubernetes=(1, 31),  # a Job that succeeds with fewer nodes than it has
    operator=Operator(name="the cluster's controller manager", selector="", manager="kubernetes.io/job-controller"),
    nodes=(("spec", "parallelism"), ("spec", "completions")),
    template=("spec", "template"),
    active=("active",),
    pod_suffix="-{index}-00000",
    pod_label="batch.kubernetes.io/job-name",
    file="job.yaml.j2",
    has_subdomain=True,
    is_scalable=True,
    is_partially_admitted=True,
)


class Engine(StrEnum):
    """Value of ``--engine``. All engines run the same pods with the same exit codes."""

    AUTO = "auto"
    """The first engine that the cluster serves."""
    PYTORCHJOB = "pytorchjob"
    TRAINJOB = "trainjob"
    JOBSET = "jobset"
    JOB = "job"


ENGINES: Final[Mapping[str, EngineKind]] = {
    engine.name: engine for engine in (PYTORCHJOB, TRAINJOB, JOBSET, INDEXED_JOB)
}
DEFAULT_ENGINE: Final = Engine.PYTORCHJOB
"""Engine if the cluster was not queried, and for this machine, which supports only this kind."""
PARTIALLY_ADMITTED: Final = frozenset(name for name, engine in ENGINES.items() if engine.is_partially_admitted)
"""Engines whose jobs Kueue may start with fewer nodes."""
RUNTIMES: Final = {
    engine.runtime.kind: (engine.api_version, engine.runtime.plural) for engine in ENGINES.values() if engine.runtime
}
"""Kinds that must exist before the root object, with API version and plural."""
