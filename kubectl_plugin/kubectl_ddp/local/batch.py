"""The Job controller's part, for a Job of one pod: the rendezvous store. A pure decision.

The store outlives any of its pods and not the run: a pod that failed is made anew, up to ``backoffLimit``; once the run
is over the pod is stopped, as its owner's end would on a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.local import pods as pod_states

DEFAULT_BACKOFF_LIMIT: Final = 6


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What the Job controller wants done."""

    create: bool = False
    delete: tuple[str, ...] = ()
    event: tuple[str, str] | None = None
    """Reason and message, of what is worth telling."""


def reconcile(batch_job: Object, pods: Sequence[Object], *, failures: int, is_run_over: bool) -> BatchPlan:
    """Decide what to do about a batch Job.

    Args:
        batch_job: the Job.
        pods: its pods that are not removed yet.
        failures: how many of its pods have failed so far.
        is_run_over: whether the job that it serves has ended or is to go.
    """
    over = tuple(pod["metadata"]["name"] for pod in pods if pod_states.is_over(pod))
    live = [pod for pod in pods if not pod_states.is_over(pod)]
    if is_run_over or batch_job["spec"].get("suspend"):
        leaving = tuple(pod["metadata"]["name"] for pod in live if not pod_states.is_terminating(pod))
        return BatchPlan(delete=leaving)
    if live or any(pod["status"]["phase"] == "Succeeded" for pod in pods):
        return BatchPlan(delete=tuple(name for name in over if live))
    if failures > batch_job["spec"].get("backoffLimit", DEFAULT_BACKOFF_LIMIT):
        name = batch_job["metadata"]["name"]
        return BatchPlan(event=("BackoffLimitExceeded", f"Job {name} has reached the specified backoff limit"))
    return BatchPlan(create=True, delete=over)
