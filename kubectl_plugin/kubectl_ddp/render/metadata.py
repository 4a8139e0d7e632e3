"""Labels and annotations of the root object and of the pods: the job's own, the user's, and those of its gang.

Labels of a gang queue a job and start its minimum of nodes together; each scheduler has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ddp_trainer.common.constants import Role
from kubectl_ddp.engines import PARTIALLY_ADMITTED
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube.kueue_queue import KUEUE_ELASTIC, KUEUE_MIN_PARALLELISM, KUEUE_PRIORITY, KUEUE_QUEUE
from kubectl_ddp.spec.layout import pods_of_a_replica
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import SCHEDULERS, is_kueue_managed
from kubectl_ddp.values.pod import Placement
from kubectl_ddp.values.program import Gang, QueueResize

KAI_QUEUE: Final = "kai.scheduler/queue"
NATIVE_GROUP: Final = "scheduling.k8s.io"
NATIVE_VERSIONS: Final = ("v1alpha2", "v1alpha3", "v1beta1")
"""Versions of Workload and PodGroup whose fields are known, oldest first; without a cluster, the first is rendered."""
NATIVE_REFERENCES: Final = ("podGroupTemplateRef", "workloadRef")
"""Fields of a PodGroup that name its Workload, in v1alpha2 and in later versions."""
NATIVE_TEMPLATE: Final = "node"
"""Name of the only PodGroup template in a Workload."""

Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMetadata:
    """Additions of a queue and a gang scheduler to the objects."""

    labels: Texts = field(default_factory=dict)
    """Labels of the object that the queue or scheduler reads."""
    annotations: Texts = field(default_factory=dict)
    """Annotations of the same object."""
    is_roots_alone: bool = False
    """True if objects that an operator creates from the root must lack them; otherwise the queue would see two jobs."""
    pod_labels: Texts = field(default_factory=dict)
    pod_annotations: Texts = field(default_factory=dict)
    templates: tuple[str, ...] = ()
    """Templates of the group objects, in a valid order for creation."""
    is_scheduling_group: bool = False
    """True if the pods name the group in ``spec.schedulingGroup``."""


def gang_metadata(spec: JobSpec, engine: str) -> GangMetadata:
    """Return the additions of the queue and the gang scheduler of ``spec`` to the objects of ``engine``."""
    gang = GANGS[spec.gang](spec) if spec.gang in GANGS else GangMetadata()
    if not is_kueue_managed(spec):
        return gang
    # Kueue decides when the job starts; Kubernetes' own gang scheduling then binds its pods together.
    return replace(_kueue(spec, engine), templates=gang.templates, is_scheduling_group=gang.is_scheduling_group)


def gang_scheduling_view(spec: JobSpec, engine: str, native_version: str = NATIVE_VERSIONS[0]) -> dict[str, Any]:
    """Return the gang scheduling settings for the templates.

    Args:
        spec: The job.
        engine: Name of its engine.
        native_version: Served version of Workload and PodGroup, for ``--gang native``.
    """
    return {
        "gang": gang_metadata(spec, engine),
        "native_api": f"{NATIVE_GROUP}/{native_version}",
        "native_template": NATIVE_TEMPLATE,
        "workload_reference": _workload_reference(spec.name, native_version),
        "waits_for_gang": spec.gang is not Gang.NONE,
        "gang_queue": spec.queue if spec.queue and not is_kueue_managed(spec) else None,
        "scheduler": spec.scheduler or SCHEDULERS.get(spec.gang),
    }


def _kueue(spec: JobSpec, engine: str) -> GangMetadata:
    """Return Kueue's labels and annotations.

    Kueue admits a job as a whole, and an Indexed Job also partially, down to the minimum of nodes: spares are the first
    pods that it does without. Partial admission is
    off if Kueue keeps replicas together: it would admit any number of pods, and keep pods of an incomplete replica
    gated forever. Kueue refuses jobs that are partially admitted and elastic.
    """
    partial = {
        KUEUE_MIN_PARALLELISM: str(spec.nnodes.minimum),
        "kueue.x-k8s.io/job-completions-equal-parallelism": "true",
    }
    if spec.queue_resize is QueueResize.RUNNING:
        partial = {KUEUE_ELASTIC: "true"}
    is_sliced = any(wish.placement is Placement.REPLICA for wish in spec.topology)
    may_shrink = spec.nnodes.minimum < spec.largest_pod_count
    return GangMetadata(
        labels={KUEUE_QUEUE: str(spec.queue)} | ({KUEUE_PRIORITY: spec.queue_priority} if spec.queue_priority else {}),
        annotations=partial if engine in PARTIALLY_ADMITTED and may_shrink and not is_sliced else {},
        pod_annotations=_kueue_topology(spec) if spec.gang is Gang.KUEUE else {},
        is_roots_alone=True,
    )


def _kueue_topology(spec: JobSpec) -> dict[str, str]:
    """Return Kueue's topology annotations. Kueue supports one level, so only the first packed level is used.

    The pods of a replica are a slice of the pods, in the order of their indices, which equals the order of ranks. Kueue
    before its pull request 10282 never ungates pods that request slices only, so they request the level as a whole as
    well.
    """
    packs = [wish for wish in spec.topology if wish.placement is Placement.PACK][:1]
    force = {True: "required", False: "preferred"}
    found = {f"kueue.x-k8s.io/podset-{force[wish.required]}-topology": wish.key for wish in packs}
    for wish in spec.topology:
        if wish.placement is Placement.REPLICA:
            if not packs:
                found["kueue.x-k8s.io/podset-preferred-topology"] = wish.key
            found["kueue.x-k8s.io/podset-slice-required-topology"] = wish.key
            found["kueue.x-k8s.io/podset-slice-size"] = str(pods_of_a_replica(spec))
    return found


def _volcano(spec: JobSpec) -> GangMetadata:
    return GangMetadata(
        pod_annotations={"scheduling.k8s.io/group-name": spec.name}, templates=("pod-group-volcano.yaml.j2",)
    )


def _scheduler_plugins(spec: JobSpec) -> GangMetadata:
    return GangMetadata(
        pod_labels={"scheduling.x-k8s.io/pod-group": spec.name}, templates=("pod-group-scheduler-plugins.yaml.j2",)
    )


def _kai(spec: JobSpec) -> GangMetadata:
    """Return KAI's labels. KAI groups pods by their owner, and reads the minimum from its annotation."""
    queue = {KAI_QUEUE: spec.queue} if spec.queue else {}
    return GangMetadata(
        labels=queue, pod_labels=queue, annotations={"kai.scheduler/batch-min-member": str(spec.nnodes.minimum)}
    )


def _native(spec: JobSpec) -> GangMetadata:
    """Return the objects of Kubernetes' own gang. It has no queues, so a queue is one of Kueue's."""
    del spec
    return GangMetadata(templates=("workload.yaml.j2", "pod-group-native.yaml.j2"), is_scheduling_group=True)


def _workload_reference(name: str, version: str) -> dict[str, Any]:
    """Return the reference of a PodGroup to the template in its Workload; v1alpha2 has another field for it."""
    oldest, later = NATIVE_REFERENCES
    if version == "v1alpha2":
        return {oldest: {"workload": {"workloadName": name, "podGroupTemplateName": NATIVE_TEMPLATE}}}
    return {later: {"workloadName": name, "templateName": NATIVE_TEMPLATE}}


GANGS: Final[Mapping[Gang, Callable[[JobSpec], GangMetadata]]] = {
    Gang.VOLCANO: _volcano,
    Gang.SCHEDULER_PLUGINS: _scheduler_plugins,
    Gang.KAI: _kai,
    Gang.NATIVE: _native,
}


# A proxy in front of the ports of the collectives breaks them.
NO_PROXY: Final = {"sidecar.istio.io/inject": "false"}
NO_EVICTION: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
MOVES: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def metadata_view(
    spec: JobSpec, labels: Callable[..., dict[str, str]], gang: GangMetadata, fabric_annotations: Texts
) -> dict[str, Any]:
    """Return the metadata of the pods for the templates."""
    return {
        "worker_metadata": {
            "labels": merge_metadata("labels", spec.labels, {**labels(Role.WORKER), **gang.pod_labels}, NO_PROXY),
            "annotations": merge_metadata(
                "annotations", spec.annotations, {**gang.pod_annotations, **fabric_annotations}, NO_EVICTION
            ),
        },
        "store_metadata": {
            "labels": merge_metadata("labels", spec.labels, labels(Role.STORE), NO_PROXY),
            "annotations": merge_metadata("annotations", spec.annotations, {}, MOVES),
        },
    }


def merge_metadata(key: str, wanted: Texts, own: Texts, defaults: Texts | None = None) -> dict[str, str]:
    """Return the labels or annotations of an object.

    Args:
        key: Key of the job file that has the user's.
        wanted: The user's, which override ``defaults``.
        own: The job's own, which cannot be overridden.
        defaults: Defaults.

    Raises:
        UsageError: If the user's contradict the job's own.
    """
    for name, value in wanted.items():
        if own.get(name, value) != value:
            raise UsageError(
                f"{key}: '{name}' is '{value}', and the job itself sets it to '{own[name]}'.", hint="Leave it out."
            )
    return {**own, **(defaults or {}), **wanted}
