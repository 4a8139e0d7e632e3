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
"""How kinds begin that stand in none."""


def unwrapped(objects: Sequence[Object]) -> Iterator[Object]:
    """The objects as they will stand in a namespace, and for each kind of pod of a custom resource a Job of its own."""
    items = [entry for item in objects for entry in (item["items"] if item["kind"] == "List" else [item])]
    for item in items:
        yield _placed(deepcopy(item))
    for item in items:
        if item["kind"] not in KNOWN:
            yield from (_job(item, role, template) for role, template in _templates(item.get("spec")))


def _placed(item: Object) -> Object:
    """In a namespace, as ``kubectl -n`` would put it."""
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
