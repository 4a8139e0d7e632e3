"""Timeline of a job: events, state changes and container exits, as one list.

The kubelet creates no event for the exit of a container, and events expire after an hour. Conditions and container
statuses of the objects fill these gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, epoch, timestamp
from kubectl_ddp.status.termination_message import describe_exit_code

NORMAL = "Normal"
WARNING = "Warning"

_NORMAL_EXITS: Final = frozenset({Exit.SUCCESS, Exit.TERMINATED})
"""Exit codes that are normal: success, and SIGTERM from a planned stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One entry of the timeline."""

    time: str
    """Time as RFC 3339 in UTC, to the second."""
    type: str
    """``Normal`` or ``Warning``."""
    reason: str
    """Reason as one word."""
    object: str
    """Kind and name of the object, as in ``pod/digits-worker-1``."""
    message: str
    count: int = 1
    """Number of occurrences up to ``time``."""

    @property
    def timestamp(self) -> float:
        """Unix time; 0 if unknown."""
        return epoch(self.time) or 0.0


def history(snapshot: Snapshot, events: Iterable[Object]) -> list[TimelineEvent]:
    """Return the timeline, oldest entry first."""
    of_events = [_event(event) for event in events]
    known = {(one.object, one.reason) for one in of_events}
    seen = [
        one
        for one in (*_states(snapshot.job), *_container_exits(snapshot.pods))
        if (one.object, one.reason) not in known
    ]
    return sorted(dict.fromkeys([*of_events, *seen]), key=lambda one: one.time)


def _event(event: Object) -> TimelineEvent:
    involved = event.get("involvedObject") or {}
    times = (event.get("lastTimestamp"), event.get("eventTime"), (event.get("metadata") or {}).get("creationTimestamp"))
    series = event.get("series") or {}
    return TimelineEvent(
        time=_second(series.get("lastObservedTime") or next((time for time in times if time), "")),
        type=str(event.get("type") or NORMAL),
        reason=str(event.get("reason") or ""),
        object=f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}",
        message=_clean(event.get("message")),
        count=int(event.get("count") or series.get("count") or 1),
    )


def _states(job: Object) -> Iterator[TimelineEvent]:
    """Yield an entry for each condition of the root object, including conditions that are now false."""
    kind = job_kinds.engine_of(job)
    for condition in (job.get("status") or {}).get("conditions") or ():
        word = kind.conditions.get(condition["type"])
        if word is not None and condition.get("lastTransitionTime"):
            yield TimelineEvent(
                time=_second(condition["lastTransitionTime"]),
                type=WARNING if word == "Failed" else NORMAL,
                reason=str(condition.get("reason") or word),
                object=f"{kind.kind.lower()}/{job['metadata']['name']}",
                message=_clean(condition.get("message")),
            )


def _container_exits(pods: Sequence[Object]) -> Iterator[TimelineEvent]:
    for pod in pods:
        for status in pod.get("status", {}).get("containerStatuses") or ():
            for state in (status.get("lastState") or {}, status.get("state") or {}):
                if ended := state.get("terminated"):
                    yield _end(str(pod["metadata"]["name"]), status, ended)


def _end(pod: str, status: Object, ended: dict[str, Any]) -> TimelineEvent:
    code = int(ended.get("exitCode", 0))
    how = "ended well" if code == 0 else describe_exit_code(code)
    exit_code = "" if how.endswith(f" {code}") else f" (exit code {code})"
    return TimelineEvent(
        time=_second(ended.get("finishedAt") or ""),
        type=NORMAL if code in _NORMAL_EXITS else WARNING,
        reason=str(ended.get("reason") or "Terminated"),
        object=f"pod/{pod}",
        message=f"Container {status['name']} {how}{exit_code}.",
    )


def _clean(text: object) -> str:
    """Return the text as one line without secrets and control characters: operators quote the last output of pods."""
    return clean_text(" ".join(str(text or "").split()))


def _second(time: str) -> str:
    return timestamp(epoch(time)) or ""
