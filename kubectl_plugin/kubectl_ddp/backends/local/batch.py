"""Job controller for a Job of one pod, the rendezvous store, as a pure decision.

The store outlives its pods but not the run. A failed pod is replaced up to ``backoffLimit`` times. When the run ends
the pod is stopped, as the garbage collector of a cluster would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backends.local import pods as pod_states
from kubectl_ddp.kube.objects import Object

DEFAULT_BACKOFF_LIMIT: Final = 6


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Actions that the Job controller requests."""

    create: bool = False
    delete: tuple[str, ...] = ()
    event: tuple[str, str] | None = None
    """Reason and message of an event."""


def reconcile(batch_job: Object, pods: Sequence[Object], *, failures: int, is_run_over: bool) -> BatchPlan:
    """Return the actions for a batch Job.

    Args:
        batch_job: The Job.
        pods: Its pods that have not been removed yet.
        failures: Number of its pods that have failed so far.
        is_run_over: True if the job that it belongs to has ended or is being deleted.
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
