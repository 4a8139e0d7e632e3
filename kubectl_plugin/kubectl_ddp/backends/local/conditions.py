"""Conditions of a job, set and replaced by the operator's rules (``pkg/util/status.go``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FINAL: Final = frozenset({"Succeeded", "Failed"})

_DISPLACES: Final = {"Running": {"Restarting"}, "Restarting": {"Running"}}
"""Condition → the conditions that it replaces."""


def is_true(status: Mapping[str, Any], condition: str) -> bool:
    """Return True if the job has the condition with status True."""
    return any(item["type"] == condition and item["status"] == "True" for item in status.get("conditions") or ())


def is_finished(status: Mapping[str, Any]) -> bool:
    """Return True if the job has succeeded or failed."""
    return any(is_true(status, condition) for condition in FINAL)


def set_condition(status: dict[str, Any], condition: str, value: str, *, reason: str, message: str, now: str) -> bool:
    """Set a condition and return True if it changed. The conditions of a finished job do not change."""
    present = {item["type"]: item for item in status.get("conditions") or ()}
    before = present.get(condition)
    if is_finished(status) or (before is not None and (before["status"], before["reason"]) == (value, reason)):
        return False
    if before is not None and condition == "Created":
        return False
    moved = before is None or before["status"] != value
    entry = {
        "type": condition,
        "status": value,
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now if before is None or moved else before["lastTransitionTime"],
    }
    kept = [item for kind, item in present.items() if kind not in {condition, *_DISPLACES.get(condition, ())}]
    if condition in FINAL:
        kept = [item | {"status": "False"} if item["type"] == "Running" else item for item in kept]
    status["conditions"] = [*kept, entry]
    return True
