"""PodDisruptionBudget of a running job, so that a drain waits until a replacement is ready. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ddp_controller.pod_move import has_store, is_replaceable
from ddp_controller.running_job import RunningJob, SetBudget, Timing
from ddp_trainer.common.constants import Label, Role
from kubectl_ddp.kube.objects import Object, selects

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
    is_taken = any(not is_own(budget) and _concerns(budget, job) for budget in budgets)
    wanted = None if is_taken else budget_size(job, now, timing)
    own_budget = next((budget for budget in budgets if is_own(budget) and _is_of_run(budget, job)), None)
    found = own_budget["spec"].get("minAvailable") if own_budget else None
    return SetBudget(job=job, min_available=wanted) if wanted != found else None


def orphans(budgets: Iterable[Object], jobs: Iterable[RunningJob]) -> list[Object]:
    """Return the controller's PodDisruptionBudgets without a job."""
    known = {(job.root["metadata"].get("namespace"), budget_name(job)) for job in jobs}
    place = ((budget["metadata"].get("namespace"), budget["metadata"]["name"]) for budget in budgets)
    return [budget for budget, where in zip(budgets, place, strict=False) if is_own(budget) and where not in known]


def _concerns(budget: Object, job: RunningJob) -> bool:
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


def is_own(budget: Object) -> bool:
    """Return whether the controller made a PodDisruptionBudget."""
    return bool((budget["metadata"].get("labels") or {}).get(Label.MANAGED_BY) == MANAGER)
