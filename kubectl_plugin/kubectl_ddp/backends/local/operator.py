"""Training operator as a pure decision: from a job, its pods and its last status to actions and the new status.

Follows training-operator 1.9 for a PyTorchJob of workers
(``pkg/controller.v1/{common/job.go,common/pod.go,pytorch/pytorchjob_controller.go}``). One successful worker makes an
elastic job succeed. ``ExitCode`` replaces the pod for exit codes from 128 on and fails the job for lower ones.
``backoffLimit`` counts in-place restarts of running pods. It has no effect under ``ExitCode``, where the launcher keeps
the restart budget.

:func:`reconcile_job` decides about a Job of one pod, the rendezvous store, which outlives its pods but not the run. A
failed pod is replaced up to ``backoffLimit`` times. When the run ends the pod is stopped, as the garbage collector of a
cluster would do.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kubectl_ddp.backends.local import pods as pod_states
from kubectl_ddp.backends.local.environment import worker_replicas
from kubectl_ddp.backends.local.job_status import is_finished, is_true, set_condition
from kubectl_ddp.kube.objects import Object, epoch

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions that the operator requests."""

    status: Status
    create: tuple[int, ...] = ()
    """Indices of workers to create."""
    delete: tuple[str, ...] = ()
    """Names of pods to stop."""
    events: tuple[tuple[str, str], ...] = ()
    """Reason and message of each event."""


@dataclass(slots=True)
class _Draft:
    job: Object
    workers: list[Object]
    status: Status
    now: str
    create: list[int] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.job["metadata"]["name"])

    def update_condition(self, condition: str, text: str, *, reason: str | None = None, value: str = "True") -> None:
        """Set a condition, and emit an event if it changed."""
        reason = reason or f"PyTorchJob{condition}"
        if set_condition(self.status, condition, value, reason=reason, message=text, now=self.now):
            self.events.append((reason, text))


def reconcile(job: Object, pods: Sequence[Object], status: Status, *, now: str) -> Plan:
    """Return the actions and the new status for a job.

    Args:
        job: The desired PyTorchJob.
        pods: Its current worker pods, including terminating ones.
        status: Its status after the last decision; not modified.
        now: Current time in Kubernetes' format.
    """
    draft = _Draft(job, list(pods), copy.deepcopy(status), now)
    draft.update_condition("Created", f"Job {draft.name} is created.")
    if is_finished(draft.status) or "deletionTimestamp" in job["metadata"]:
        _stop(draft, [pod for pod in draft.workers if not pod_states.is_over(pod)])
    elif job["spec"].get("runPolicy", {}).get("suspend"):
        _suspend(draft)
    else:
        _run(draft)
    _count(draft)
    return Plan(draft.status, tuple(draft.create), tuple(draft.delete), tuple(draft.events))


def _stop(draft: _Draft, pods: Sequence[Object]) -> None:
    draft.delete += [pod["metadata"]["name"] for pod in pods if not pod_states.is_terminating(pod)]


def _suspend(draft: _Draft) -> None:
    _stop(draft, draft.workers)
    text = f"Job {draft.name} is suspended."
    if is_true(draft.status, "Running"):
        draft.update_condition("Running", text, reason="PyTorchJobSuspended", value="False")
    draft.update_condition("Suspended", text)
    draft.status["startTime"] = None


def _run(draft: _Draft) -> None:
    if is_true(draft.status, "Suspended"):
        draft.update_condition("Suspended", f"Job {draft.name} is resumed.", reason="PyTorchJobResumed", value="False")
    if not draft.status.get("startTime"):
        draft.status["startTime"] = draft.now
    wanted = range(worker_replicas(draft.job))
    _stop(draft, [pod for pod in draft.workers if pod_states.index(pod) not in wanted])
    present = [pod for pod in draft.workers if pod_states.index(pod) in wanted and not pod_states.is_terminating(pod)]
    failed = _replace_failed(draft, present)
    _update_job_condition(draft, present, failed)
    if is_finished(draft.status):
        _stop(draft, [pod for pod in draft.workers if not pod_states.is_over(pod)])
        return
    taken = {pod_states.index(pod) for pod in draft.workers}
    draft.create += [index for index in wanted if index not in taken]


def _replace_failed(draft: _Draft, present: Sequence[Object]) -> list[Object]:
    """Delete failed pods that should be retried, and return the pods whose failure is final."""
    policy = draft.job["spec"]["pytorchReplicaSpecs"]["Worker"].get("restartPolicy", "OnFailure")
    final = []
    for pod in present:
        if pod["status"]["phase"] != "Failed":
            continue
        code = pod_states.exit_code(pod) or 0
        name = pod["metadata"]["name"]
        if policy == "Never" or (policy == "ExitCode" and code < pod_states.RETRYABLE):
            final.append(pod)
            continue
        draft.events.append(
            (
                "ExitedWithCode",
                f"Pod: {draft.job['metadata'].get('namespace', 'default')}.{name} exited with code {code}",
            )
        )
        draft.delete.append(name)
        draft.update_condition("Restarting", f"Job {draft.name} is restarting because 1 Worker replica(s) failed.")
    return final


def _update_job_condition(draft: _Draft, present: Sequence[Object], failed: Sequence[Object]) -> None:
    phases = [pod["status"]["phase"] for pod in present]
    succeeded = phases.count("Succeeded")
    elastic = draft.job["spec"].get("elasticPolicy") is not None
    if succeeded and (elastic or succeeded == worker_replicas(draft.job)):
        _finish(draft, "Succeeded", f"Job {draft.name} is successfully completed.")
    elif failed:
        _finish(draft, "Failed", f"Job {draft.name} is failed because {len(failed)} Worker replica(s) failed.")
    elif _exceeds_backoff_limit(draft.job, present):
        _finish(draft, "Failed", f"Job {draft.name} has failed because it has reached the specified backoff limit")
    elif _exceeds_deadline(draft):
        _finish(draft, "Failed", f"Job {draft.name} has failed because it was active longer than specified deadline")
    elif any(_runs(pod) for pod in present):
        draft.update_condition("Running", f"Job {draft.name} is running.")


def _finish(draft: _Draft, condition: str, text: str) -> None:
    draft.update_condition(condition, text)
    draft.status["completionTime"] = draft.now


def _runs(pod: Object) -> bool:
    return "running" in pod_states.container_status(pod)["state"]


def _exceeds_backoff_limit(job: Object, present: Sequence[Object]) -> bool:
    limit = job["spec"].get("runPolicy", {}).get("backoffLimit")
    policy = job["spec"]["pytorchReplicaSpecs"]["Worker"].get("restartPolicy", "OnFailure")
    if limit is None or policy not in {"OnFailure", "Always"}:
        return False
    restarts = sum(
        pod_states.container_status(pod)["restartCount"] for pod in present if pod["status"]["phase"] == "Running"
    )
    return bool(restarts > 0 if limit == 0 else restarts >= limit)


def deadline_seconds(job: Object) -> float | None:
    """Return ``activeDeadlineSeconds``, or None if the job has none."""
    seconds = job["spec"].get("runPolicy", {}).get("activeDeadlineSeconds")
    return float(seconds) if seconds is not None else None


def _exceeds_deadline(draft: _Draft) -> bool:
    seconds = deadline_seconds(draft.job)
    if seconds is None:
        return False
    started, now = epoch(draft.status["startTime"]), epoch(draft.now)
    return started is not None and now is not None and now - started >= seconds


def _count(draft: _Draft) -> None:
    present = [pod for pod in draft.workers if not pod_states.is_terminating(pod)]
    phases = [pod["status"]["phase"] for pod in present]
    draft.status["replicaStatuses"] = {
        "Worker": {
            "active": sum(_runs(pod) for pod in present),
            "succeeded": phases.count("Succeeded"),
            "failed": phases.count("Failed"),
            "selector": f"training.kubeflow.org/job-name={draft.name},"
            "training.kubeflow.org/operator-name=pytorchjob-controller,training.kubeflow.org/replica-type=worker",
        }
    }


DEFAULT_BACKOFF_LIMIT: Final = 6


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Actions that the Job controller requests."""

    create: bool = False
    delete: tuple[str, ...] = ()
    event: tuple[str, str] | None = None
    """Reason and message of an event."""


def reconcile_job(batch_job: Object, pods: Sequence[Object], *, failures: int, is_run_over: bool) -> BatchPlan:
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
