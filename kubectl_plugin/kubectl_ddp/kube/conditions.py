"""Lookup of an object's status conditions by type. Their order in the list is not significant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_ddp.kube.objects import Object


def condition_of(item: Object, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type, whatever its status; empty if the object has none.

    >>> condition_of({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "Ready")
    {'type': 'Ready', 'status': 'False'}
    """
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def holds(item: Object, kind: str) -> bool:
    """Return whether an object has a condition with status True.

    >>> holds({}, "Ready"), holds({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    (False, True)
    """
    return bool(condition_of(item, kind).get("status") == "True")
