"""What a check has to say of a node, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    SKIP = "skip"
    """Nothing to look at here; never a pass."""
    WARN = "warn"
    """The run can start, and may be slower or harder to understand than it need be."""
    FAIL = "fail"
    """The run will fail or hang."""


_ORDER = tuple(Status)


def worst(statuses: Iterable[Status]) -> Status:
    """The worst of them; ok when there are none.

    >>> worst([Status.WARN, Status.FAIL, Status.SKIP])
    <Status.FAIL: 'fail'>
    """
    return max(statuses, key=_ORDER.index, default=Status.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be, or could not be looked at."""

    check: str
    status: Status
    node: str
    """Name of the node it is about; empty for all of them."""
    message: str
    """What is so, with the value."""
    hint: str = ""
    """What to do next."""
