"""Whose an event is: of a job, by what it is about.

What is there is known by its uid. Pods that are gone cannot be asked, and their events are worth the most, so those
count by the names that the engines give: ``train-2-worker-0`` is not of ``train``, and neither is a Job ``train-2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Object, Snapshot
from kubectl_ddp.roots import ROOTS
from kubectl_ddp.timestamps import epoch

_PART: Final = r"-(?:worker|store|trainer|workers|node)(?:-\d+){0,3}"
_RANDOM: Final = r"-[a-z0-9]{5}"
_MADE: Final = {
    "Pod": re.compile(rf"{_PART}(?:{_RANDOM})?|-\d+{_RANDOM}"),
    **dict.fromkeys((root.kind for root in ROOTS.values()), re.compile(rf"(?:{_PART})?")),
}
"""How the names of what is made for a job go on from its own, by kind."""
_OF_KUEUE: Final = re.compile(rf"(?:{'|'.join(root.kind.lower() for root in ROOTS.values())})-(.+){_RANDOM}")
"""Name of a Workload."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """What tells the events of one run of a job from those of others."""

    name: str
    kind: str
    """Of the root object."""
    uid: str
    """Of the root object."""
    created: float | None
    """Unix time of the job, which began no earlier than its events."""
    uids: frozenset[str]
    """Of its pods that are there."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Attribution:
        """Of a job as it is now."""
        about = snapshot.job["metadata"]
        return cls(
            name=str(about["name"]),
            kind=str(snapshot.job.get("kind", "")),
            uid=str(about.get("uid", "")),
            created=epoch(about.get("creationTimestamp")),
            uids=frozenset(uid for pod in snapshot.pods if (uid := pod["metadata"].get("uid"))),
        )

    def matches_event(self, event: Object) -> bool:
        """Whether an event is about the job, or about what was made for it, in this run."""
        about = event.get("involvedObject") or {}
        if about.get("uid") in self.uids:
            return True
        seen = event_timestamp(event)
        # Times of events are whole seconds, as is the job's.
        is_of_this_run = seen is None or self.created is None or seen >= self.created
        return is_of_this_run and self._is_named(str(about.get("kind")), str(about.get("name", "")), about.get("uid"))

    def _is_named(self, kind: str, name: str, uid: str | None) -> bool:
        if kind == "Workload":
            match = _OF_KUEUE.fullmatch(name)
            return match is not None and match[1] == self.name
        if kind not in _MADE or not name.startswith(self.name):
            return False
        if (kind, name) == (self.kind, self.name):
            return not (uid and self.uid) or uid == self.uid
        return _MADE[kind].fullmatch(name.removeprefix(self.name)) is not None


def event_timestamp(event: Object) -> float | None:
    """When an event was seen last, as Unix time."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return epoch(
        series
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
    )


def distinct(events: Iterable[Object]) -> list[Object]:
    """Each event once, oldest first; those of a local job have no uid, and count by themselves."""
    found = {str((event.get("metadata") or {}).get("uid", "")) or id(event): event for event in events}
    return sorted(found.values(), key=lambda event: event_timestamp(event) or 0.0)
