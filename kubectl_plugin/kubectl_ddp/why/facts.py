"""Facts about a job at the time of the diagnosis, views of them for several checks, and the attribution of events.

Events are attributed by the object that each one is about. Existing objects are matched by uid. Deleted pods are
matched by the naming scheme of the engines, because their events are the most useful ones: ``train-2-worker-0`` does
not belong to ``train``, and neither does a Job ``train-2``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.hang.collector import HangSnapshot
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot, condition_of, epoch, main_status
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.status.metrics_parser import Samples

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


RECENT_SECONDS: Final = 120.0
"""Seconds without trouble after which a job without step metrics counts as recovered."""


LEAST_SILENCE_SECONDS: Final = 60.0
"""Minimum seconds without a step that count as a hang."""
SILENCE_IN_STEPS: Final = 20.0


@dataclass(frozen=True, slots=True)
class JobContainer:
    """A container of one of the job's pods, with its status."""

    pod: Object
    status: Mapping[str, Any]
    is_init: bool = False

    @property
    def pod_name(self) -> str:
        """Name of the pod."""
        return str(self.pod["metadata"]["name"])

    @property
    def holds_job(self) -> bool:
        """True for the job's container, and for an init container that it waits for. Sidecars may end as they like."""
        main = main_status(self.pod)
        return not {"running", "terminated"} & set(main.get("state") or {}) if self.is_init else self.status is main

    @property
    def waiting(self) -> Mapping[str, Any]:
        """Waiting state with its reason; empty if it does not wait."""
        return (self.status.get("state") or {}).get("waiting") or {}

    @property
    def endings(self) -> Iterator[Mapping[str, Any]]:
        """Terminations of the current and the previous container."""
        for moment in ("state", "lastState"):
            ended = (self.status.get(moment) or {}).get("terminated")
            if ended:
                yield ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All data for the checks, read once."""

    snapshot: Snapshot
    state: JobState
    now: float
    """Unix time."""
    around: RelatedObjects = field(default_factory=RelatedObjects)
    samples: Mapping[str, Samples] = field(default_factory=dict)
    """Metric samples by pod."""
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Last log lines by pod, each with its time as prefix."""
    hang_snapshot: HangSnapshot = field(default_factory=HangSnapshot)
    """Ranks' states from their launchers; read only if the job makes no steps."""

    @property
    def job(self) -> Object:
        """The root object."""
        return self.snapshot.job

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.state.name

    @property
    def pods(self) -> tuple[Object, ...]:
        """Pods that are not being deleted."""
        return tuple(pod for pod in self.snapshot.pods if "deletionTimestamp" not in pod["metadata"])

    @property
    def workers(self) -> list[Object]:
        """Worker pods that are not being deleted."""
        return termination_message.workers(self.pods)

    @property
    def is_on_cluster(self) -> bool:
        """True if the job runs on a cluster, with operators and queues; a local job has only its engine."""
        return bool(self.around.found or self.around.unseen)

    @property
    def age_seconds(self) -> float:
        """Seconds since the creation of the job."""
        return self.state.age_seconds(self.now) or 0.0

    @property
    def is_over(self) -> bool:
        """True if the job has reached a final state."""
        return self.state.is_terminal

    @property
    def is_training(self) -> bool:
        """True if the job runs with at least its minimum of ready nodes."""
        # The containers of a lost node remain ready; only the pod's condition changes.
        lost = sum(condition_of(pod, "Ready").get("status") == "False" for pod in self.workers if _was_ready(pod))
        return self.state.state is State.RUNNING and self.state.nodes.ready - lost >= self.state.nodes.minimum

    @property
    def last_step(self) -> float | None:
        """Unix time of the last step of any rank; None if no rank reports steps."""
        return max((rank.last_step for rank in self.state.ranks if rank.last_step is not None), default=None)

    @property
    def is_training_stalled(self) -> bool:
        """True if the job runs and has made steps, but none for much longer than a step takes."""
        return is_training_stalled(self.state, self.now)

    def has_recovered_from(self, event: Object | None) -> bool:
        """Return True if the job has recovered since an event: its ranks have stepped, or it has run for some time."""
        seen = event_timestamp(event) if event is not None else None
        return self.is_training if seen is None else self.has_run_since(seen)

    def has_run_since(self, seen: float) -> bool:
        """Return True if the job trains and its ranks have stepped since a Unix time.

        Without step metrics, the time must be more than :data:`RECENT_SECONDS` ago.
        """
        if not self.is_training:
            return False
        stepped = self.last_step
        return stepped > seen if stepped is not None else self.now - seen > RECENT_SECONDS

    @property
    def has_missing_pods(self) -> bool:
        """True if there are fewer worker pods than requested."""
        is_wanted = not self.is_over and not job_kinds.is_suspend_requested(self.job)
        return is_wanted and len(self.workers) < self.state.nodes.desired

    def containers(self) -> Iterator[JobContainer]:
        """Yield every container of the pods that has a status, init containers first in each pod."""
        for pod in self.pods:
            status = pod.get("status") or {}
            for init in status.get("initContainerStatuses") or ():
                yield JobContainer(pod, init, is_init=True)
            for main in status.get("containerStatuses") or ():
                yield JobContainer(pod, main)

    def events(self, *reasons: str) -> list[Object]:
        """Return this run's events about the job, its pods and Jobs with one of these reasons, oldest first."""
        return [
            event
            for event in self.job_events()
            # Kueue's actions on a Workload are in its conditions, and are reset there.
            if event.get("reason") in reasons and event["involvedObject"].get("kind") != "Workload"
        ]

    def job_events(self) -> list[Object]:
        """Return all events of this run about the job and its objects, oldest first."""
        whose = Attribution.of(self.snapshot)
        seen = (*self.snapshot.events, *self.around.of(RelatedKind.EVENTS))
        return distinct(event for event in seen if whose.matches_event(event))

    def events_of_claims(self) -> list[Object]:
        """Return the events about the volume claims of the pods, oldest first."""
        names = {name for pod in self.pods for name in claims_of(pod)}
        return distinct(
            event
            for event in self.around.of(RelatedKind.EVENTS)
            if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
            and event["involvedObject"].get("name") in names
        )

    @property
    def has_root_events(self) -> bool:
        """True if there are events about the job object itself, such as its operator's failures to create pods."""
        kind = self.job.get("kind")
        involved = [event["involvedObject"] for event in self.job_events()]
        return any(reference.get("kind") == kind and reference.get("name") == self.name for reference in involved)

    def pod(self, name: str) -> Object | None:
        """Return the current pod of this name, or None."""
        return next((pod for pod in self.pods if pod["metadata"]["name"] == name), None)


def is_training_stalled(state: JobState, now: float) -> bool:
    """Return True if a job runs and has made steps, but none for much longer than a step takes."""
    stepped = max((rank.last_step for rank in state.ranks if rank.last_step is not None), default=None)
    slowest = max((rank.seconds_per_step or 0.0 for rank in state.ranks), default=0.0)
    limit = max(LEAST_SILENCE_SECONDS, SILENCE_IN_STEPS * slowest)
    return state.state is State.RUNNING and stepped is not None and now - stepped > limit


def _was_ready(pod: Object) -> bool:
    return bool(main_status(pod).get("ready"))


def claims_of(pod: Object) -> list[str]:
    """Return the names of the PersistentVolumeClaims that a pod mounts."""
    claims = ((volume.get("persistentVolumeClaim") or {}) for volume in pod["spec"].get("volumes") or ())
    return [str(claim["claimName"]) for claim in claims if claim.get("claimName")]


def format_event(event: Object) -> str:
    """Format an event as evidence."""
    involved = event["involvedObject"]
    return f"event {event.get('reason')} on {involved.get('kind')} {involved.get('name')}: {line_of(message_of(event))}"


def message_of(event: Object) -> str:
    """Return the message of an event, or an empty string."""
    return str(event.get("message") or "")


def line_of(text: str | None, *, most: int = 400) -> str:
    """Return a text as one line of limited length, without secrets and terminal controls."""
    line = clean_text(" ".join((text or "").split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def names_of(pods: list[Object] | tuple[Object, ...], *, most: int = 3) -> str:
    """Return the names of pods for a sentence.

    >>> names_of([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}])
    'pods a, b'
    """
    names = [str(pod["metadata"]["name"]) for pod in pods]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(names[:most])}{more}"


def subject(text: str) -> str:
    """Capitalize a text for the beginning of a sentence.

    >>> subject("pods a, b")
    'Pods a, b'
    """
    return f"{text[:1].upper()}{text[1:]}"


def label_of(item: Object, label: str) -> str:
    """Return the value of a label, or an empty string."""
    return str((item["metadata"].get("labels") or {}).get(label, ""))
