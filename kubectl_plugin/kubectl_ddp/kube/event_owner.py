"""Attribution of events to jobs, by the object that each event is about.

Existing objects are matched by uid. Deleted pods are matched by the naming scheme of the engines, because their events
are the most useful ones: ``train-2-worker-0`` does not belong to ``train``, and neither does a Job ``train-2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.kube.timestamps import epoch

_PART: Final = r"-(?:worker|store|trainer|workers|node)(?:-\d+){0,3}"
_RANDOM: Final = r"-[a-z0-9]{5}"
_MADE: Final = {
    "Pod": re.compile(rf"{_PART}(?:{_RANDOM})?|-\d+{_RANDOM}"),
    **dict.fromkeys((engine.kind for engine in ENGINES.values()), re.compile(rf"(?:{_PART})?")),
}
"""Kind → pattern of the suffix that engines append to the job's name for the objects they create."""
_OF_KUEUE: Final = re.compile(rf"(?:{'|'.join(engine.kind.lower() for engine in ENGINES.values())})-(.+){_RANDOM}")
"""Pattern of the name of Kueue's Workload of a job."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Properties that identify the events of one run of a job."""

    name: str
    kind: str
    """Kind of the root object."""
    uid: str
    """Uid of the root object."""
    created: float | None
    """Creation time of the job as Unix time. Older events belong to an earlier run."""
    uids: frozenset[str]
    """Uids of the existing pods."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Attribution:
        """Return the attribution of the job in a snapshot."""
        metadata = snapshot.job["metadata"]
        return cls(
            name=str(metadata["name"]),
            kind=str(snapshot.job.get("kind", "")),
            uid=str(metadata.get("uid", "")),
            created=epoch(metadata.get("creationTimestamp")),
            uids=frozenset(uid for pod in snapshot.pods if (uid := pod["metadata"].get("uid"))),
        )

    def matches_event(self, event: Object) -> bool:
        """Return whether an event is about this run of the job, or about an object created for it."""
        involved = event.get("involvedObject") or {}
        if involved.get("uid") in self.uids:
            return True
        seen = event_timestamp(event)
        # Kubernetes rounds both times to whole seconds.
        is_of_this_run = seen is None or self.created is None or seen >= self.created
        return is_of_this_run and self._is_named(
            str(involved.get("kind")), str(involved.get("name", "")), involved.get("uid")
        )

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
    """Return the time of an event's last occurrence, as Unix time."""
    series = (event.get("series") or {}).get("lastObservedTime")
    return epoch(
        series
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or (event.get("metadata") or {}).get("creationTimestamp")
    )


def distinct(events: Iterable[Object]) -> list[Object]:
    """Return the events without duplicates, oldest first. Events of a local job have no uid, so all are kept."""
    found = {str((event.get("metadata") or {}).get("uid", "")) or id(event): event for event in events}
    return sorted(found.values(), key=lambda event: event_timestamp(event) or 0.0)
