"""Pods of custom resources as Jobs: checkov passes over what it does not know, so that 100 % of it says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from kubectl_ddp.lint.manifests import find_workloads

Object = dict[str, Any]
KNOWN: Final = frozenset({"Pod", "Job", "CronJob", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"})
"""Kinds whose pods checkov looks at."""
NAMESPACE: Final = "training"
OF_NO_NAMESPACE: Final = ("Cluster", "Namespace", "PriorityClass", "ValidatingAdmission", "ResourceFlavor")
"""How kinds begin that stand in none."""


def unwrapped(objects: Sequence[Object]) -> Iterator[Object]:
    """The objects as they will stand in a namespace, and for each kind of pod of a custom resource a Job of its own."""
    items = [each for item in objects for each in (item["items"] if item["kind"] == "List" else [item])]
    for item in items:
        yield _placed(deepcopy(item))
    for workload in find_workloads(items):
        if workload.document["kind"] not in KNOWN:
            for pods in workload.pods:
                yield _job(workload.document, pods.role, dict(pods.metadata), dict(pods.spec))


def _placed(item: Object) -> Object:
    """In a namespace, as ``kubectl -n`` would put it."""
    if not item["kind"].startswith(OF_NO_NAMESPACE):
        item["metadata"].setdefault("namespace", NAMESPACE)
    return item


def _job(owner: Object, role: str, metadata: Object, spec: Object) -> Object:
    name = "-".join(filter(None, (owner["metadata"]["name"], owner["kind"].lower(), role.lower())))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": owner["metadata"].get("namespace", NAMESPACE)},
        "spec": {"template": {"metadata": metadata, "spec": deepcopy(spec)}},
    }
