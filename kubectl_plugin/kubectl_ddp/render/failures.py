"""Failure handling on every engine: a lost pod is replaced, a failed program fails the job."""

from __future__ import annotations

from typing import Any, Final

from ddp_trainer.common.constants import Exit
from kubectl_ddp.spec.model import JobSpec

LARGEST_LIMIT: Final = 2**31 - 1


def view(spec: JobSpec, container: str) -> dict[str, Any]:
    """Return the failure settings for the templates."""
    return {"backoff_limit": backoff_limit(spec), "pod_failure_policy": pod_failure_policy(container)}


def backoff_limit(spec: JobSpec) -> int:
    """Return the number of lost pods that a job survives; an incident that affects every node counts once per node."""
    return min(LARGEST_LIMIT, spec.largest_pod_count * max(1, spec.max_restarts))


def pod_failure_policy(container: str) -> dict[str, Any]:
    """Return the exit code rules as a batch/v1 pod failure policy; the operator's ``ExitCode`` is equivalent.

    A pod that was evicted, preempted or removed from its node does not count, whatever its exit code. Codes from 128
    count, and the pod is replaced.
    """
    permanent = list(range(1, Exit.SIGNAL_BASE))
    return {
        "rules": [
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {
                "action": "FailJob",
                "onExitCodes": {"containerName": container, "operator": "In", "values": permanent},
            },
        ]
    }
