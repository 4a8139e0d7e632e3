"""Results of checks: statuses and findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    SKIP = "skip"
    """The check does not apply here; never a pass."""
    WARN = "warn"
    """The run can start, but may be slower or harder to debug."""
    FAIL = "fail"
    """The run will fail or hang."""


_ORDER = tuple(Status)


def worst(statuses: Iterable[Status]) -> Status:
    """Return the worst status; ok if there are none.

    >>> worst([Status.WARN, Status.FAIL, Status.SKIP])
    <Status.FAIL: 'fail'>
    """
    return max(statuses, key=_ORDER.index, default=Status.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem, or one check that was skipped."""

    check: str
    status: Status
    node: str
    """Name of the node; empty for all nodes."""
    message: str
    """Observation, with the value."""
    hint: str = ""
    """Next step for the user."""
