"""The job's own container of a pod, found by its name: users and webhooks add containers before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ddp_trainer.common.constants import Role
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.kube.objects import Object

NAMES: Final = frozenset({*(engine.container for engine in ENGINES.values()), str(Role.STORE)})
"""Names of the job's containers: of a worker on each engine, and of the store."""


def main_container(pod: Object) -> str:
    """Return the name of the job's container; that of the first one in a pod of another component."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    return next((name for name in names if name in NAMES), names[0])


def main_status(pod: Object) -> Mapping[str, Any]:
    """Return the status of the job's container; empty before the pod has one. The kubelet sorts them by name."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    status: Mapping[str, Any] = next((each for each in statuses if each.get("name") in NAMES), statuses[0])
    return status
