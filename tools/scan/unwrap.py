"""Pods of custom resources as Jobs: checkov passes over what it does not know, so that 100 % of it says nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

Object = dict[str, Any]
KNOWN: Final = frozenset({"Pod", "Job", "CronJob", "Deployment", "StatefulSet", "ReplicaSet", "DaemonSet"})
"""Kinds whose pods checkov looks at."""
NAMESPACE: Final = "training"
OF_NO_NAMESPACE: Final = ("Cluster", "Namespace", "PriorityClass", "ValidatingAdmission", "ResourceFlavor")
"""Prefixes of kinds without a namespace."""


def unwrap_pods(objects: Sequence[Object]) -> Iterator[Object]:
    """Yield the objects with a namespace, and a Job for each pod template of a custom resource."""
    items = [entry for item in objects for entry in (item["items"] if item["kind"] == "List" else [item])]
    for item in items:
        yield _with_namespace(deepcopy(item))
    for item in items:
        if item["kind"] not in KNOWN:
            yield from (_job(item, role, template) for role, template in _templates(item.get("spec")))


def _with_namespace(item: Object) -> Object:
    """Set the namespace as ``kubectl -n`` does."""
    if not item["kind"].startswith(OF_NO_NAMESPACE):
        item["metadata"].setdefault("namespace", NAMESPACE)
    return item


def _templates(value: Any, role: str = "") -> Iterator[tuple[str, Object]]:
    """Each pod template in an object, and its role: the nearest name of an entry of a list or of ReplicaSpecs."""
    if isinstance(value, list):
        for child in value:
            yield from _templates(child, str(child.get("name", role)) if isinstance(child, dict) else role)
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key == "template" and isinstance(inner.get("spec"), dict) and "containers" in inner["spec"]:
            yield role, inner
        elif key.endswith("ReplicaSpecs"):
            yield from (found for name, child in inner.items() for found in _templates(child, name))
        else:
            yield from _templates(inner, role)


def _job(owner: Object, role: str, template: Object) -> Object:
    name = "-".join(filter(None, (owner["metadata"]["name"], owner["kind"].lower(), role.lower())))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": owner["metadata"].get("namespace", NAMESPACE)},
        "spec": {"template": deepcopy(template)},
    }
