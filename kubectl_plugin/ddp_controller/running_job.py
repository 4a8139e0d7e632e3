"""A job as the controller sees it, its size, its bounds and its pods, and the decisions about it. Pure functions.

Decisions are :class:`Resize`, :class:`Evict` and :class:`SetBudget`; :class:`Timing` holds their limits of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from kubectl_ddp.engines import EngineKind
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, is_resizable
from kubectl_ddp.kube.objects import Object, Snapshot, condition_of, epoch, main_status
from kubectl_ddp.status.termination_message import stores, workers
from kubectl_ddp.values.quantity import NodeRange

OVER: Final = frozenset({"Succeeded", "Failed"})
SILENT_SECONDS: Final = 60.0
"""Time after which a ready pod counts as joined if its metrics cannot be read."""
LARGEST_NUMBER: Final = 10**12
"""Largest number that an annotation of the controller can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker pod."""

    name: str
    uid: str
    ready_since: float | None
    """Unix time since which the pod has been ready; None if it is not."""
    changed_at: float
    """Unix time at which the pod became ready or not ready, or at which it was created."""
    is_leaving: bool
    """True if the pod is being deleted or has ended."""
    node: str
    """Name of its node; empty before it has one."""
    drain_reason: str
    """Why the pod should move; empty if it can stay."""
    labels: Mapping[str, str]
    has_joined: bool | None = True
    """True if its launcher is in the group or waits as a spare; None if it did not answer."""

    def is_settled(self, now: float, settle_seconds: float) -> bool:
        """Return whether the group can rely on the pod: it is a member or a warm spare.

        A pod that does not answer counts after :data:`SILENT_SECONDS`.
        """
        if self.is_leaving or self.ready_since is None or self.has_joined is False:
            return False
        least = settle_seconds if self.has_joined else max(settle_seconds, SILENT_SECONDS)
        return now - self.ready_since >= least


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move in progress."""

    size: int
    """Number of worker pods before it."""
    since: float
    """Unix time of its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """One job and its worker pods."""

    root: Object
    engine: EngineKind
    size: int
    """Number of worker pods in its specification, with spares and with the temporary pod of a move."""
    low: int
    """Minimum number of nodes."""
    high: int
    """Maximum number of nodes."""
    sizes: Sequence[int]
    """Numbers of nodes that the job can have, ascending: whole replicas of its layout, within its bounds."""
    spares: int
    """Requested spares. They exist only if the job has its maximum of nodes."""
    move: Move | None
    """Move in progress (annotation ``ddp.dev/move``); None without one, or if the annotation is malformed."""
    resized_at: float
    """Unix time of its last change of size by quota (annotation ``ddp.dev/size``); 0 if there was none."""
    pods: tuple[Member, ...]
    store: Member | None
    """Pod of its rendezvous store; None if it has none now. It is ready once its container runs."""
    is_ended: bool
    """True if it is over or being deleted."""
    is_suspended: bool
    """True if it has no pods: it was suspended, or Kueue has not admitted it."""
    missing_since: float | None = None
    """Unix time since which as many pods as now have been missing; None if it is unknown."""

    @property
    def is_active(self) -> bool:
        """True if the job runs."""
        return not self.is_ended and not self.is_suspended

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.root['metadata'].get('namespace', '')}/{self.root['metadata']['name']}"

    @property
    def uid(self) -> str:
        """Uid of its root object."""
        return str(self.root["metadata"].get("uid", ""))

    @property
    def queue(self) -> str:
        """Name of its LocalQueue; empty if Kueue does not manage it."""
        return str((self.root["metadata"].get("labels") or {}).get(KUEUE_QUEUE, ""))

    @property
    def place(self) -> tuple[str, str]:
        """Namespace and name of its LocalQueue."""
        return str(self.root["metadata"].get("namespace", "")), self.queue

    @property
    def uses_workload_slices(self) -> bool:
        """True if Kueue accepts a change of its size while it runs. In Kueue 0.18, that is the batch Job."""
        return self.engine.kind == "Job" and is_resizable(self.root)

    @property
    def world(self) -> int:
        """Number of pods that train, without spares and without the temporary pod of a move."""
        return max(1, min(self.size - bool(self.move), self.high))

    @property
    def has_spares(self) -> bool:
        """True if some of its pods wait as spares."""
        return self.size - bool(self.move) > self.high

    def pod_count(self, nodes: int) -> int:
        """Return the number of worker pods for a number of nodes."""
        return nodes + self.spares if nodes == self.high else nodes

    @property
    def missing(self) -> int:
        """Number of pods that its engine has not created, or not created again."""
        return max(0, self.size - sum(not pod.is_leaving for pod in self.pods))

    @property
    def pods_to_drain(self) -> list[Member]:
        """Pods that should move and have not begun to."""
        return [pod for pod in self.pods if pod.drain_reason and not pod.is_leaving]

    @property
    def shares_store_node(self) -> bool:
        """True if the store runs on the node of a worker. A drain of that node evicts both at the same time."""
        return self.store is not None and any(pod.node == self.store.node for pod in self.pods if not pod.is_leaving)

    @property
    def can_surge(self) -> bool:
        """True if the controller may add a temporary pod."""
        is_free = not self.queue or self.uses_workload_slices
        return job_kinds.is_scalable(self.root) and is_free and not job_kinds.uses_torchrun(self.root)

    def pending_members(self, now: float) -> list[Member]:
        """Return the ready pods of which a move depends on whether they have joined."""
        if not (self.move or self.has_spares or any(pod.drain_reason for pod in self.pods)):
            return []
        ready = [pod for pod in self.pods if pod.ready_since is not None and not pod.is_leaving]
        return [pod for pod in ready if not pod.has_joined and not pod.is_settled(now, 0.0)]

    def settled(self, now: float, settle_seconds: float) -> int:
        """Return the number of settled pods."""
        return sum(pod.is_settled(now, settle_seconds) for pod in self.pods)


def running_job(
    snapshot: Snapshot, drain_reasons: Mapping[str, str], has_joined: Callable[[str], bool | None] = lambda _: True
) -> RunningJob:
    """Return a job from its objects.

    Args:
        snapshot: Root object and pods.
        drain_reasons: Name of a node → why its pods should move.
        has_joined: Returns whether the launcher of a pod, by its uid, has joined the run; None if unknown.

    Raises:
        ValueError, KeyError, TypeError: If the specification in its annotation is malformed.
    """
    job = snapshot.job
    nodes = NodeRange(*job_kinds.bounds(job))
    metadata = job["metadata"]
    is_over = bool(OVER & job_kinds.conditions(job).keys())
    return RunningJob(
        root=job,
        engine=job_kinds.engine_of(job),
        size=job_kinds.desired_nodes(job),
        low=nodes.minimum,
        high=nodes.maximum,
        sizes=_sizes(job, nodes),
        spares=job_kinds.spares(job),
        move=_move(job),
        resized_at=_number(job_kinds.json_annotation(job, Annotation.SIZE), "since"),
        pods=tuple(_members(workers(snapshot.pods), drain_reasons, has_joined)),
        store=next((member for member in _stores(snapshot.pods, drain_reasons) if not member.is_leaving), None),
        is_ended=is_over or "deletionTimestamp" in metadata,
        is_suspended=job_kinds.is_suspend_requested(job),
    )


def _sizes(job: Object, nodes: NodeRange) -> Sequence[int]:
    text = str(job_kinds.submitted_spec(job).get("parallel") or "")
    if not text or not nodes.is_elastic:
        return range(nodes.minimum, nodes.maximum + 1)
    return _sizes_of_layout(text, nodes.minimum, nodes.maximum, job_kinds.processes_per_node(job))


@lru_cache(maxsize=32)
def _sizes_of_layout(text: str, low: int, high: int, per_node: int) -> Sequence[int]:
    try:
        return LayoutRange.parse(text).node_counts(low, high, per_node)
    except LayoutError:  # one of a newer version
        return range(low, high + 1)


def _move(job: Object) -> Move | None:
    note = job_kinds.json_annotation(job, Annotation.MOVE)
    size = int(_number(note, "size"))
    return Move(size=size, since=_number(note, "since")) if size else None


def _number(note: Mapping[str, Any], key: str) -> float:
    """Return a number of an annotation; 0 if it is missing or malformed. JSON has ``NaN`` and ``Infinity``, too."""
    value = note.get(key)
    return value if isinstance(value, int | float) and 0 <= value <= LARGEST_NUMBER else 0


def _members(
    pods: Iterable[Object], drain_reasons: Mapping[str, str], has_joined: Callable[[str], bool | None]
) -> Iterable[Member]:
    for pod in pods:
        ready = condition_of(pod, "Ready")
        changed = epoch(ready.get("lastTransitionTime"))
        member = _member(pod, changed if ready.get("status") == "True" else None, drain_reasons)
        yield replace(member, changed_at=changed or member.changed_at, has_joined=has_joined(member.uid))


def _stores(pods: Iterable[Object], drain_reasons: Mapping[str, str]) -> Iterable[Member]:
    """Yield the pods of the store. A readiness gate keeps them from ever being ready."""
    for pod in stores(pods):
        yield _member(
            pod, epoch(((main_status(pod).get("state") or {}).get("running") or {}).get("startedAt")), drain_reasons
        )


def _member(pod: Object, ready_since: float | None, drain_reasons: Mapping[str, str]) -> Member:
    return Member(
        name=str(pod["metadata"]["name"]),
        uid=str(pod["metadata"].get("uid", "")),
        ready_since=ready_since,
        changed_at=epoch(pod["metadata"].get("creationTimestamp")) or 0.0,
        is_leaving="deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") in OVER,
        node=(node := str(pod["spec"].get("nodeName", ""))),
        drain_reason=drain_reasons.get(node, ""),
        labels=pod["metadata"].get("labels") or {},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Limits of time, in seconds."""

    settle: float = 10.0
    """Least time that a pod must be ready before the group relies on it."""
    replacement_timeout: float = 120.0
    """Time to wait for a replacement before a pod may leave without one."""
    cooldown: float = 3.0
    """Least time between two changes of size by quota, per ClusterQueue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Change the number of worker pods, together with annotations of the root object."""

    job: RunningJob
    size: int
    annotations: Mapping[str, str | None]
    """Annotation → new value; None removes it."""
    action: str
    """``surge``, ``settle``, ``shrink``, ``grow``, ``start`` or ``withdraw``."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict one pod through the eviction API, so that the job's PodDisruptionBudget counts."""

    job: RunningJob
    pod: Member
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBudget:
    """Give the job's PodDisruptionBudget this size, or delete it."""

    job: RunningJob
    min_available: int | None
    """Pods that an eviction must leave; None for no PodDisruptionBudget."""


Decision = Resize | Evict | SetBudget
