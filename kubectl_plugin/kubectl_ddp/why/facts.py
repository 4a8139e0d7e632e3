"""What is known about a job when the question is asked, and the views of it that several checks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp import evidence, roots
from kubectl_ddp.attribution import Attribution, distinct, event_timestamp
from kubectl_ddp.backend import Object, Snapshot
from kubectl_ddp.conditions import condition_of
from kubectl_ddp.exposition import Samples
from kubectl_ddp.hang.collector import HangSnapshot
from kubectl_ddp.related_objects import RelatedKind, RelatedObjects
from kubectl_ddp.state import JobState, State

RECENT_SECONDS: Final = 120.0
"""So long a job that tells no steps is watched after a trouble, before it counts as over."""


LEAST_SILENCE_SECONDS: Final = 60.0
"""No step for less is no hang."""
SILENCE_IN_STEPS: Final = 20.0


@dataclass(frozen=True, slots=True)
class Container:
    """A container of one of the job's pods, with its status."""

    pod: Object
    status: Mapping[str, Any]
    is_init: bool = False

    @property
    def pod_name(self) -> str:
        """The pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def waiting(self) -> Mapping[str, Any]:
        """Why it waits; empty when it does not."""
        return (self.status.get("state") or {}).get("waiting") or {}

    @property
    def endings(self) -> Iterator[Mapping[str, Any]]:
        """How it ended, now and the time before."""
        for moment in ("state", "lastState"):
            ended = (self.status.get(moment) or {}).get("terminated")
            if ended:
                yield ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the checks may look at; read once."""

    snapshot: Snapshot
    state: JobState
    now: float
    """Unix time."""
    around: RelatedObjects = field(default_factory=RelatedObjects)
    samples: Mapping[str, Samples] = field(default_factory=dict)
    """Pod → what it says about itself."""
    lines: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pod → the last lines it wrote, each with its time in front."""
    sight: HangSnapshot = field(default_factory=HangSnapshot)
    """The ranks as their launchers see them; read only of a job that does not step."""

    @property
    def job(self) -> Object:
        """The root object."""
        return self.snapshot.job

    @property
    def name(self) -> str:
        """The job's name."""
        return self.state.name

    @property
    def pods(self) -> tuple[Object, ...]:
        """Its pods that are not on their way out."""
        return tuple(pod for pod in self.snapshot.pods if "deletionTimestamp" not in pod["metadata"])

    @property
    def workers(self) -> list[Object]:
        """Worker pods that are not on their way out."""
        return evidence.workers(self.pods)

    @property
    def is_on_cluster(self) -> bool:
        """Whether operators, queues and stores stand around it; on one machine its engine is all of them."""
        return bool(self.around.found or self.around.unseen)

    @property
    def age_seconds(self) -> float:
        """Seconds since the job was made."""
        return self.state.age_seconds(self.now) or 0.0

    @property
    def is_over(self) -> bool:
        """Whether it will do no more by itself."""
        return self.state.is_terminal

    @property
    def is_training(self) -> bool:
        """Whether its ranks are at work, as far as anybody can tell."""
        # Of a node that is lost the last word was that its containers are ready; the pod's condition is taken back.
        gone = sum(condition_of(pod, "Ready").get("status") == "False" for pod in self.workers if _was_ready(pod))
        return self.state.state is State.RUNNING and self.state.nodes.ready - gone >= self.state.nodes.minimum

    @property
    def last_step(self) -> float | None:
        """Unix time of the last step of any rank; None where no rank reports steps."""
        return max((rank.last_step for rank in self.state.ranks if rank.last_step is not None), default=None)

    @property
    def is_step_overdue(self) -> bool:
        """Whether it runs, has stepped, and has not for much longer than a step takes."""
        return is_step_overdue(self.state, self.now)

    def has_recovered_from(self, event: Object | None) -> bool:
        """Whether the job has gone on since an event: its ranks have stepped, or it has run for a while."""
        seen = event_timestamp(event) if event is not None else None
        return self.is_training if seen is None else self.has_run_since(seen)

    def has_run_since(self, seen: float) -> bool:
        """Whether it trains, and its ranks have stepped since a Unix time; without steps, whether it is a while ago."""
        if not self.is_training:
            return False
        stepped = self.last_step
        return stepped > seen if stepped is not None else self.now - seen > RECENT_SECONDS

    @property
    def has_missing_pods(self) -> bool:
        """Whether it has fewer worker pods than it is told to have."""
        is_wanted = not self.is_over and not roots.is_suspend_requested(self.job)
        return is_wanted and len(self.workers) < self.state.nodes.desired

    def containers(self) -> Iterator[Container]:
        """Every container of its pods that has a status, init containers before the others of their pod."""
        for pod in self.pods:
            status = pod.get("status") or {}
            for init in status.get("initContainerStatuses") or ():
                yield Container(pod, init, is_init=True)
            for main in status.get("containerStatuses") or ():
                yield Container(pod, main)

    def events(self, *reasons: str) -> list[Object]:
        """Events of this run about the job, its pods and Jobs, with one of these reasons, oldest first."""
        return [
            event
            for event in self.job_events()
            # What Kueue did to a Workload stands in its conditions, and is undone there.
            if event.get("reason") in reasons and event["involvedObject"].get("kind") != "Workload"
        ]

    def job_events(self) -> list[Object]:
        """All events of this run about the job or what was made of it, oldest first."""
        whose = Attribution.of(self.snapshot)
        seen = (*self.snapshot.events, *self.around.of(RelatedKind.EVENTS))
        return distinct(event for event in seen if whose.matches_event(event))

    def events_of_claims(self) -> list[Object]:
        """Events about the volumes that its pods name, oldest first."""
        names = {name for pod in self.pods for name in claims_of(pod)}
        return distinct(
            event
            for event in self.around.of(RelatedKind.EVENTS)
            if event["involvedObject"].get("kind") == "PersistentVolumeClaim"
            and event["involvedObject"].get("name") in names
        )

    @property
    def has_root_events(self) -> bool:
        """Whether anybody has said anything about the job itself, as its operator does when it fails to make pods."""
        kind = self.job.get("kind")
        about = [event["involvedObject"] for event in self.job_events()]
        return any(each.get("kind") == kind and each.get("name") == self.name for each in about)

    def pod(self, name: str) -> Object | None:
        """The present pod of this name."""
        return next((pod for pod in self.pods if pod["metadata"]["name"] == name), None)


def is_step_overdue(state: JobState, now: float) -> bool:
    """Whether a job runs, has stepped, and has not for much longer than a step takes."""
    stepped = max((rank.last_step for rank in state.ranks if rank.last_step is not None), default=None)
    slowest = max((rank.seconds_per_step or 0.0 for rank in state.ranks), default=0.0)
    limit = max(LEAST_SILENCE_SECONDS, SILENCE_IN_STEPS * slowest)
    return state.state is State.RUNNING and stepped is not None and now - stepped > limit


def _was_ready(pod: Object) -> bool:
    return any(each.get("ready") for each in (pod.get("status") or {}).get("containerStatuses") or ())


def claims_of(pod: Object) -> list[str]:
    """Names of the PersistentVolumeClaims that a pod mounts."""
    claims = ((volume.get("persistentVolumeClaim") or {}) for volume in pod["spec"].get("volumes") or ())
    return [str(claim["claimName"]) for claim in claims if claim.get("claimName")]


def format_event(event: Object) -> str:
    """An event as evidence."""
    about = event["involvedObject"]
    return f"event {event.get('reason')} on {about.get('kind')} {about.get('name')}: {line_of(message_of(event))}"


def message_of(event: Object) -> str:
    """What an event says; not every event says something."""
    return str(event.get("message") or "")


def line_of(text: str | None, *, most: int = 400) -> str:
    """A text as one line of bounded length, without secrets and terminal controls."""
    line = clean_text(" ".join((text or "").split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def names_of(pods: list[Object] | tuple[Object, ...], *, most: int = 3) -> str:
    """Pods by name.

    >>> names_of([{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}])
    'pods a, b'
    """
    names = [str(pod["metadata"]["name"]) for pod in pods]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"pod{'s' if len(names) > 1 else ''} {', '.join(names[:most])}{more}"


def subject(text: str) -> str:
    """A text that begins a sentence.

    >>> subject("pods a, b")
    'Pods a, b'
    """
    return f"{text[:1].upper()}{text[1:]}"


def has_label(item: Object, label: str) -> str:
    """The value of a label, or nothing."""
    return str((item["metadata"].get("labels") or {}).get(label, ""))
