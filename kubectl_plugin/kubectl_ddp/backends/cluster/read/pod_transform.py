"""Reduction of listed pods to a tenth of their size, because a cluster may have ten thousand.

``managedFields``, environment, volumes and probes are most of a pod and do not describe the state of its job. A pod
that is read individually is not reduced.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubectl_ddp.kube.objects import Object

METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "labels",
    "annotations",
    "creationTimestamp",
    "deletionTimestamp",
)
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
    """Remove ``managedFields`` from an object in place, and return the object."""
    item["metadata"].pop("managedFields", None)
    return item


def strip_pod(pod: Object) -> Object:
    """Return the fields that describe a pod's state: its labels, its node, its containers and its conditions."""
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


OCCUPYING: Final = ("nodeName", "resources", "overhead")
OCCUPYING_CONTAINER: Final = ("resources", "restartPolicy")


def strip_scheduled_pod(pod: Object) -> Object | None:
    """Return the fields that determine the capacity a pod uses; ``None`` without a machine."""
    spec, about = pod["spec"], pod["metadata"]
    if not spec.get("nodeName"):
        return None
    lean = _only(spec, OCCUPYING)
    for kind in ("containers", "initContainers"):
        lean[kind] = [_only(each, OCCUPYING_CONTAINER) for each in spec.get(kind) or ()]
    return {
        "metadata": _only(about, ("name", "namespace")),
        "spec": lean,
        "status": {"phase": (pod.get("status") or {}).get("phase")},
    }


def _only(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}
