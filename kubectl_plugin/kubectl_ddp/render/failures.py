"""What restarts mean on every engine: one pod that died is made anew, a program that failed fails the job."""

from __future__ import annotations

from typing import Any, Final

from ddp_trainer.common.constants import Exit
from kubectl_ddp.spec.model import JobSpec

LARGEST_LIMIT: Final = 2**31 - 1


def view(spec: JobSpec, container: str) -> dict[str, Any]:
    """The templates' part."""
    return {"backoff_limit": backoff_limit(spec), "pod_failure_policy": pod_failure_policy(container)}


def backoff_limit(spec: JobSpec) -> int:
    """Lost pods that a job survives: counted over all of them, so one incident that touches every node is many."""
    return min(LARGEST_LIMIT, spec.nnodes.maximum * max(1, spec.max_restarts))


def pod_failure_policy(container: str) -> dict[str, Any]:
    """The exit codes of the contract, as batch/v1 reads them; the operator's ``ExitCode`` means the same.

    A pod that was evicted, preempted or taken from its machine costs nothing, whatever its program said last. Codes
    from 128 are counted, and the pod is made anew.
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
