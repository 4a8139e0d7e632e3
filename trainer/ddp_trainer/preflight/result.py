"""Results of checks: statuses and findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
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

    @property
    def severity(self) -> int:
        """Number that is higher for a worse status."""
        return list(Status).index(self)


def most_severe(statuses: Iterable[Status]) -> Status:
    """Return the worst status; ok if there are none.

    >>> most_severe([Status.WARN, Status.FAIL, Status.SKIP])
    <Status.FAIL: 'fail'>
    """
    return max(statuses, key=lambda status: status.severity, default=Status.OK)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or one check that was skipped."""

    status: Status
    node: str
    """Name of the node; empty for all nodes."""
    message: str
    """Observation, with the value."""
    hint: str = ""
    """Next step for the user."""
    check: str = ""
    """Name of the check, which :func:`named` sets."""


def named(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of one check, with its name."""
    return [replace(finding, check=check) for finding in findings]
