"""Move of pods before their node goes: first a replacement, then the eviction. Pure functions.

Signs that a node will go or is broken are cordon, taints of interruption notices, and bad conditions. The
PodDisruptionBudget of a running job makes a drain wait until a replacement is ready.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ddp_controller.running_job import Evict, Move, Resize, RunningJob, SetBudget, Timing
from ddp_trainer.common.constants import Annotation, Label, Role
from kubectl_ddp.kube.objects import Object, selects

TAINTS: Final[Mapping[str, str]] = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes it",
    "karpenter.sh/disrupted": "Karpenter removes it",
    "karpenter.sh/disruption": "Karpenter removes it",
    "aws-node-termination-handler/spot-itn": "AWS takes the spot instance back",
    "aws-node-termination-handler/scheduled-maintenance": "AWS scheduled maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination": "its Auto Scaling group ends it",
    "aws-node-termination-handler/rebalance-recommendation": "AWS recommends to leave the spot instance",
    "cloud.google.com/impending-node-termination": "Google Cloud ends the VM",
    "remediator.aks.microsoft.com/unschedulable": "AKS drains it for a scheduled event",
    "node.cloudprovider.kubernetes.io/shutdown": "the cloud has shut it down",
}
"""Key of a taint → what it means. Sources, in this order: kubernetes/autoscaler ``cluster-autoscaler/utils/taints``;
kubernetes-sigs/karpenter ``pkg/apis/v1/taints.go`` and, before v1, ``designs/no-schedule-taint.md``;
aws/aws-node-termination-handler ``pkg/node/node.go`` (with ``taintNode: true``); GoogleCloudPlatform/
k8s-node-termination-handler ``deploy/k8s.yaml``; learn.microsoft.com ``azure/aks/node-auto-repair``; kubernetes.io
``labels-annotations-taints``. NVSentinel cordons by default, and a taint that is configured there can be added by
``--taint``.
"""

CORDONED: Final = "cordoned"
"""Reason of a node that was cordoned, which is how a drain begins."""

CONDITIONS: Final[Mapping[str, str]] = {
    "KernelDeadlock": "its kernel is deadlocked",
    "ReadonlyFilesystem": "a file system is read-only",
    "CorruptDockerOverlay2": "its container storage is corrupt",
    "FrequentKubeletRestart": "its kubelet restarts often",
    "FrequentContainerdRestart": "its containerd restarts often",
    "FrequentUnregisterNetDevice": "its network devices fail",
    "GpuMemWatch": "its GPU memory has failed",
    "GpuPcieWatch": "PCIe of a GPU has failed",
    "GpuNvlinkWatch": "NVLink has failed",
    "GpuInforomWatch": "the InfoROM of a GPU is corrupt",
    "GpuMcuWatch": "the microcontroller of a GPU has failed",
    "GpuSmWatch": "a multiprocessor of a GPU has failed",
    "SysLogsXIDError": "a GPU reported an XID error",
    "SysLogsSXIDError": "an NVSwitch reported an SXID error",
    "SysLogsGPUFallenOff": "a GPU has fallen off the bus",
}
"""Type of a condition that is bad when its status is True → what it means. Sources: kubernetes/node-problem-detector
``config/*.json`` (the first six); NVIDIA/NVSentinel, its GPU and syslog health monitors (the others). ``Ready`` is not
listed: the pods of a node that is lost cannot be moved, and the group continues without them.
"""


def drain_reason(node: Object, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return why the pods of a node should move; empty if they can stay.

    Args:
        node: Node.
        more: Further keys of taints or types of conditions, with their meaning.
    """
    spec, status = node.get("spec") or {}, node.get("status") or {}
    for taint in spec.get("taints") or ():
        if why := {**TAINTS, **more}.get(str(taint.get("key"))):
            return f"taint {taint['key']}: {why}"
    for condition in status.get("conditions") or ():
        why = {**CONDITIONS, **more}.get(str(condition.get("type")))
        if why and condition.get("status") == "True":
            return f"condition {condition['type']}: {why}"
    return CORDONED if spec.get("unschedulable") else ""


STORE_SETTLE_SECONDS: Final = 15.0
"""Time that a store must run before a group relies on it.

Until then, launchers may still connect to the address of its predecessor. Resolvers keep that for 5 s, and an attempt
to connect and the pause after it take up to 4 s, twice at worst.
"""


def decide_move(job: RunningJob, now: float, timing: Timing) -> Resize | Evict | None:
    """Return the next step of moving the pods of one job; None if there is nothing to do now."""
    if not job.is_active:
        return None
    pods_to_drain = job.pods_to_drain
    if job.store is not None and job.store.drain_reason:
        return Evict(job=job, pod=job.store, reason=job.store.drain_reason)
    if not pods_to_drain:
        return _return_to_size(job, job.move, now, timing) if job.move else None
    settled = job.settled(now, timing.settle)
    if settled > least_members(job, now, timing):
        return (
            Evict(job=job, pod=pods_to_drain[0], reason=pods_to_drain[0].drain_reason) if has_store(job, now) else None
        )
    if job.move or job.has_spares or not job.can_surge:
        return None
    move = json.dumps({"size": job.size, "since": int(now)})
    return Resize(
        job=job,
        size=job.size + 1,
        annotations={Annotation.MOVE: move},
        action="surge",
        reason=pods_to_drain[0].drain_reason,
    )


def has_store(job: RunningJob, now: float) -> bool:
    """Return whether the group can re-form: its store has settled on a node that stays."""
    return job.store is not None and not job.store.drain_reason and job.store.is_settled(now, STORE_SETTLE_SECONDS)


def least_members(job: RunningJob, now: float, timing: Timing) -> int:
    """Return the number of settled pods that must remain after an eviction.

    It is the whole group while a replacement can be expected, and else the minimum of the job.
    """
    return job.world if is_replaceable(job, now, timing) else min(job.low, job.world)


def is_replaceable(job: RunningJob, now: float, timing: Timing) -> bool:
    """Return whether a replacement for a pod exists or can be expected: a spare or a temporary pod."""
    return (job.has_spares or job.can_surge) and not is_overdue(job, now, timing)


def is_overdue(job: RunningJob, now: float, timing: Timing) -> bool:
    """Return whether a move waits for a replacement that did not come in time, for example because no node has room.

    A node with many pods takes longer than the timeout, but each pod that becomes ready starts the time again.
    """
    since = job.move.since if job.move else _without_spare_since(job, now, timing)
    if since is None:
        return False
    pods = job.pods if job.store is None else (*job.pods, job.store)
    return now - max([since, *(pod.ready_since or 0.0 for pod in pods)]) > timing.replacement_timeout


def _without_spare_since(job: RunningJob, now: float, timing: Timing) -> float | None:
    """Return the time since which a job with spares has had none to replace a pod that should move; None if it has one.

    Its last spare was gone when as many pods as it has spares had left, or were not ready.
    """
    if not job.has_spares or not job.pods_to_drain or job.settled(now, timing.settle) > job.world:
        return None
    waiting = [pod.changed_at for pod in job.pods if not pod.is_leaving and not pod.is_settled(now, timing.settle)]
    missing = sorted([*waiting, *[job.missing_since or now] * job.missing])
    return missing[job.size - job.world - 1]


def _return_to_size(job: RunningJob, move: Move, now: float, timing: Timing) -> Resize | None:
    """Return the change that ends a move, once all pods have settled or the timeout is over."""
    was_scaled_meanwhile = move.size != job.size - 1
    if was_scaled_meanwhile:
        size = job.size
    elif job.settled(now, timing.settle) >= job.size or is_overdue(job, now, timing):
        size = move.size
    else:
        return None
    return Resize(
        job=job, size=size, annotations={Annotation.MOVE: None}, action="settle", reason="its pods have moved"
    )


MANAGER: Final = "ddp-controller"
"""Value of the label ``app.kubernetes.io/managed-by`` of the controller's PodDisruptionBudgets."""
OWN_ROLE: Final = "ddp-controller"
"""ClusterRole of the chart that grants the controller's rights. It owns the PodDisruptionBudgets."""


def budget_size(job: RunningJob, now: float, timing: Timing) -> int | None:
    """Return the number of ready pods that an eviction must leave; None if the job has no PodDisruptionBudget.

    A job whose pods can be moved keeps all pods until a spare or a temporary pod and its store are ready, and then its
    whole group. If its store shares a node with a worker, it also keeps all pods until a node has a sign: a drain would
    evict store and worker together. A job that can only lose a pod keeps its minimum. A job that cannot lose one has no
    budget: a drain would never end.
    """
    if not job.is_active or not job.pods:
        return None
    floor = job.low if job.low < job.world else None
    if is_replaceable(job, now, timing):
        keeps_store = has_store(job, now) and (bool(job.pods_to_drain) or not job.shares_store_node)
        return job.world if keeps_store and job.settled(now, timing.settle) > job.world else job.size
    return floor


def decide_budget(job: RunningJob, budgets: Sequence[Object], now: float, timing: Timing) -> SetBudget | None:
    """Return the change of a job's PodDisruptionBudget; None if it is as it should be.

    Args:
        job: Job.
        budgets: All PodDisruptionBudgets of its namespace.
        now: Unix time.
        timing: Limits of time.
    """
    is_taken = any(not is_managed(budget) and _matches_job(budget, job) for budget in budgets)
    wanted = None if is_taken else budget_size(job, now, timing)
    own_budget = next((budget for budget in budgets if is_managed(budget) and _is_of_run(budget, job)), None)
    found = own_budget["spec"].get("minAvailable") if own_budget else None
    return SetBudget(job=job, min_available=wanted) if wanted != found else None


def orphaned_budgets(budgets: Iterable[Object], jobs: Iterable[RunningJob]) -> list[Object]:
    """Return the controller's PodDisruptionBudgets without a job."""
    known = {(job.root["metadata"].get("namespace"), budget_name(job)) for job in jobs}
    place = ((budget["metadata"].get("namespace"), budget["metadata"]["name"]) for budget in budgets)
    return [budget for budget, where in zip(budgets, place, strict=False) if is_managed(budget) and where not in known]


def _matches_job(budget: Object, job: RunningJob) -> bool:
    """Return whether a budget selects a pod of the job or has the name of the job's budget.

    The eviction API refuses a pod that two budgets select.
    """
    selector = (budget.get("spec") or {}).get("selector")
    return budget["metadata"]["name"] == budget_name(job) or any(selects(selector, pod.labels) for pod in job.pods)


def _is_of_run(budget: Object, job: RunningJob) -> bool:
    """Return whether this is the budget of this run, and not of an earlier job of the same name."""
    selector = (budget.get("spec") or {}).get("selector") or {}
    return bool(budget["metadata"]["name"] == budget_name(job) and selector.get("matchLabels") == pod_labels(job))


def job_owner(job: RunningJob) -> Object:
    """Return the reference to a job as the owner of its budget."""
    metadata = job.root["metadata"]
    return {
        "apiVersion": job.engine.api_version,
        "kind": job.engine.kind,
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def budget_of(job: RunningJob, min_available: int, owner: Object) -> Object:
    """Return the PodDisruptionBudget of a job. Kubernetes deletes it with its owner."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {
            "name": budget_name(job),
            "labels": {Label.JOB: job.root["metadata"]["name"], Label.MANAGED_BY: MANAGER},
            "ownerReferences": [owner],
        },
        "spec": {
            "minAvailable": min_available,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pod_labels(job)},
        },
    }


def pod_labels(job: RunningJob) -> dict[str, str]:
    """Return the labels that select the worker pods of this run."""
    labels = job.root["metadata"].get("labels") or {}
    run = {Label.RUN_ID.value: str(labels[Label.RUN_ID])} if Label.RUN_ID in labels else {}
    return {Label.JOB.value: str(job.root["metadata"]["name"]), Label.ROLE.value: Role.WORKER.value, **run}


def budget_name(job: RunningJob) -> str:
    """Return the name of the job's PodDisruptionBudget."""
    return f"ddp-{job.root['metadata']['name']}"


def is_managed(budget: Object) -> bool:
    """Return whether the controller made a PodDisruptionBudget."""
    return bool((budget["metadata"].get("labels") or {}).get(Label.MANAGED_BY) == MANAGER)
