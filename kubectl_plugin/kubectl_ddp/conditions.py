"""Conditions of any object, looked for by type: their order in the list means nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_ddp.backend import Object


def condition_of(item: Object, kind: str) -> Mapping[str, Any]:
    """A condition, whatever its value; empty where the object has none of the kind.

    >>> condition_of({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "Ready")
    {'type': 'Ready', 'status': 'False'}
    """
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


def holds(item: Object, kind: str) -> bool:
    """Whether an object has a condition, and it is true.

    >>> holds({}, "Ready"), holds({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    (False, True)
    """
    return bool(condition_of(item, kind).get("status") == "True")
