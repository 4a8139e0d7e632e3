"""Number of nodes that a job has been granted, and why it is smaller than wanted. Reads only objects of the job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import is_partially_admitted
from kubectl_ddp.kube.objects import Object, Queued, condition_of

GATED: Final = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod that waits for its quota."""


def granted_size(job: Object, workers: Iterable[Object], queue: Queued | None) -> tuple[int, int, str]:
    """Return the number of nodes that have quota and a machine, the wanted number, and a short reason if it is larger.

    Args:
        job: Root object of a job that has not ended.
        workers: Its worker pods.
        queue: Its position in a queue.
    """
    desired, is_partial = job_kinds.desired_nodes(job), is_partially_admitted(job)
    wanted = max(desired, job_kinds.pod_count(job, job_kinds.bounds(job)[1])) if is_partial else desired
    if queue is not None and not queue.is_admitted:
        return 0, wanted, "" if queue.is_held else "waits for quota"
    if job_kinds.is_suspend_requested(job):
        return 0, wanted, ""
    reasons = [_unscheduled_reason(pod) for pod in workers]
    gated, without_machine = reasons.count(GATED), reasons.count("Unschedulable")
    granted = max(0, desired - gated - without_machine)
    if gated:
        return granted, wanted, f"{gated} {'wait' if gated > 1 else 'waits'} for quota"
    if without_machine:
        return granted, wanted, f"{without_machine} {'find' if without_machine > 1 else 'finds'} no machine"
    if granted < wanted:
        return granted, wanted, "less quota at its start"
    wanted, reason = _size_before_controller(job, desired)
    return granted, wanted, reason


def _size_before_controller(job: Object, desired: int) -> tuple[int, str]:
    """Return the size that the job would have without the platform's controller, and why the controller reduced it."""
    told = job_kinds.json_annotation(job, Annotation.SIZE)
    wanted = told.get("wanted")
    if told.get("granted") == desired and isinstance(wanted, int) and wanted > desired:
        return wanted, str(told.get("reason", ""))
    return desired, ""


def _unscheduled_reason(pod: Object) -> str:
    """Return why a pod has no machine yet; empty if it has one."""
    if pod["spec"].get("nodeName"):
        return ""
    return str(condition_of(pod, "PodScheduled").get("reason", ""))
