"""What a list keeps of a pod: a tenth of it, for a cluster has ten thousand.

Who set which field, the environment, volumes and probes of every container make most of a pod, and say nothing about
how its job is doing. One pod that is looked at by itself is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubectl_ddp.backend import Object

METADATA: Final = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp")
SPEC: Final = (
    "nodeName",
    "nodeSelector",
    "priority",
    "priorityClassName",
    "restartPolicy",
    "schedulerName",
    "overhead",
    "resources",
)
CONTAINER: Final = ("name", "ports", "resources", "restartPolicy")
STATUS: Final = ("phase", "reason", "message", "conditions", "podIP", "startTime")
CONTAINER_STATUSES: Final = ("initContainerStatuses", "containerStatuses")
CONTAINER_STATUS: Final = ("name", "ready", "restartCount", "state", "lastState", "started")


def without_managers(item: Object) -> Object:
    """An object without the record of who set which of its fields; the object itself is changed."""
    item["metadata"].pop("managedFields", None)
    return item


def strip_pod(pod: Object) -> Object:
    """What tells how a pod is doing: whose it is, where it runs, what its containers do, and why it does not."""
    spec, status = pod["spec"], pod.get("status") or {}
    containers = {
        kind: [_only(each, CONTAINER) for each in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    statuses = {
        kind: [_only(each, CONTAINER_STATUS) for each in status[kind]] for kind in CONTAINER_STATUSES if kind in status
    }
    return {
        "metadata": _only(pod["metadata"], METADATA),
        "spec": _only(spec, SPEC) | containers,
        "status": _only(status, STATUS) | statuses,
    }


OCCUPYING: Final = ("nodeName", "priority", "containers", "initContainers", "resources", "overhead")
OCCUPYING_CONTAINER: Final = ("resources", "restartPolicy")


def strip_scheduled_pod(pod: Object) -> Object | None:
    """What counts of a pod where room is counted: what it takes, where, and whose it is; nothing without a machine."""
    spec, about = pod["spec"], pod["metadata"]
    if not spec.get("nodeName"):
        return None
    lean = _only(spec, OCCUPYING)
    for kind in ("containers", "initContainers"):
        lean[kind] = [_only(each, OCCUPYING_CONTAINER) for each in spec.get(kind) or ()]
    metadata = {name: about.get(name) for name in ("name", "namespace", "labels")}
    return {"metadata": metadata, "spec": lean, "status": {"phase": (pod.get("status") or {}).get("phase")}}


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}
