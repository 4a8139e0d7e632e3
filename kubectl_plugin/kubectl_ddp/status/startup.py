"""Startup waterfall of a job: the seconds of each phase from its submission to its first step.

:func:`startup` derives the first phases from the conditions, container statuses and events of pods, and the others
from the pods' metrics. Each second has one phase, since a phase begins where the one before has ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from ddp_trainer.common.constants import Annotation, GroupState
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import IN_POD, StartupPhase
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object, condition_of, epoch, main_status
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.job_progress import EarlierPods
from kubectl_ddp.status.metrics_parser import GROUPS_JOINED, Labels, Samples

_SAME_STEP_SECONDS: Final = 1.0
"""Pods whose first steps end within this time are of the same worker group."""
_CREATION_SECONDS: Final = 2.0
"""Seconds in which a container starts whose image is present. Conditions have whole seconds."""
_SUBMISSION_SECONDS: Final = 10.0
"""Time from the creation of a root until the last request of its submission."""
_BEFORE_MEETING: Final = (StartupPhase.INTERPRETER, StartupPhase.IMPORTS)
"""Phases of a pod that other pods wait for."""
_PULL_REASONS: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
_PULL_BEGINS, _PULL_ENDS = "Pulling", "Pulled"
EVENT_REASONS: Final = (_PULL_BEGINS, _PULL_ENDS)
"""Reasons of the events from which a start is computed."""
_PULLED: Final = re.compile(r"^Successfully pulled image .* in ([\d.hmsµu]+) \(([\d.hmsµu]+) including waiting\)")
_SIZE: Final = re.compile(r"Image size: (\d+) bytes")
_PART: Final = re.compile(r"([\d.]+)(h|ms|m|s|µs|us|ns)")
_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """Start of a job, up to its first step."""

    submitted: float
    """Unix time of the submission."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Phase → seconds, of the phases that have ended, in their order. Phases that took no time are left out."""
    current: StartupPhase | None = None
    """Phase that the job is in; None once the first step has ended."""
    pod: str = ""
    """Pod that this start was read from: the one that the others waited for. Empty before there are pods."""
    image_bytes: int | None = None
    """Size of the largest image, as soon as the first pod has pulled it."""

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any] | None) -> Self | None:
        """Return the start in a job's summary, which outlives its pods; None if there is none."""
        stored = (summary or {}).get("startup")
        if not isinstance(stored, Mapping) or not isinstance(stored.get("submitted"), int | float):
            return None
        seconds = {str(phase): stored[phase] for phase in StartupPhase if isinstance(stored.get(phase), int | float)}
        return cls(submitted=stored["submitted"], seconds=seconds)

    def to_summary(self) -> dict[str, float]:
        """Return the start as plain numbers; the inverse is :meth:`from_summary`."""
        return {"submitted": round(self.submitted, 3)} | {name: round(spent, 3) for name, spent in self.seconds.items()}

    @property
    def since(self) -> float:
        """Unix time at which the current phase began; without one, at which the first step ended."""
        return self.submitted + sum(self.seconds.values())

    @property
    def is_over(self) -> bool:
        """True if the first step has ended."""
        return self.current is None

    @property
    def total(self) -> float:
        """Seconds of all phases that have ended; once the start is over, those from submission to first step."""
        return sum(self.seconds.values())

    def elapsed_seconds(self, now: float) -> dict[str, float]:
        """Return the seconds of each phase at a Unix time, with those of the current phase."""
        if self.current is None:
            return dict(self.seconds)
        return self.seconds | {str(self.current): max(0.0, now - self.since)}


def startup(
    job: Object,
    workers: Sequence[Object],
    samples: Mapping[str, Samples],
    events: Sequence[Object] = (),
    summary: Mapping[str, Any] | None = None,
    *,
    is_suspended: bool = False,
) -> Startup | None:
    """Return the start of a job; None if it is unknown: its first pods are gone, or did not measure it.

    A start that is over and that a command has kept stays, whatever pods there are now.

    Args:
        job: Root object.
        workers: Worker pods.
        samples: Name of a pod → its metrics.
        events: Events of the pods. Without them, a pull is recognized by the pod's conditions from 2 s on.
        summary: Summary of the job, if it is over.
        is_suspended: True if somebody has suspended the job, which then waits for no quota.
    """
    if (first := Startup.from_summary({"startup": EarlierPods.of(job).startup})) is not None:
        return first
    submitted, stored = submission_time(job), Startup.from_summary(summary)
    if submitted is None or (stored is not None and not samples):
        return stored
    if is_suspended or _was_resumed(job):
        return None
    if not workers:
        return Startup(submitted=submitted, current=StartupPhase.QUEUE) if summary is None else None
    return _of_pods(submitted, workers, samples, events)


def _of_pods(
    submitted: float, workers: Sequence[Object], by_pod: Mapping[str, Samples], events: Sequence[Object]
) -> Startup | None:
    """Return the start as the present pods saw it; None if those that made it are gone."""
    pulls = _pull_seconds(events)
    chains = [_Chain.of(pod, by_pod.get(_name(pod)) or _last_samples(pod), pulls, submitted) for pod in workers]
    late = {pod for pod, samples in by_pod.items() if _is_late_member(samples)}
    done = [chain for chain in chains if chain.current is None]
    ends = [chain.end for chain in done if chain.pod not in late]
    if not ends:
        are_gone = bool(by_pod) and late == by_pod.keys()
        if are_gone or any(samples.value(Metric.STEP) is not None for samples in by_pod.values()):
            return None  # the first pods are gone, or of a version that does not measure its start
        slowest = min(chains, key=lambda chain: (chain.place, -chain.end))
        return replace(slowest.startup(submitted), image_bytes=_image_bytes(events))
    group = [chain for chain in done if chain.end <= min(ends) + _SAME_STEP_SECONDS]
    job_starts = [moment for samples in by_pod.values() if (moment := samples.value(Metric.JOB_START)) is not None]
    if job_starts and min(job_starts) < min(chain.launched for chain in group) - _SAME_STEP_SECONDS:
        return None  # the pods of the first start were replaced
    return max(group, key=lambda chain: chain.ready).startup(submitted)


def _is_late_member(samples: Samples) -> bool:
    """Return whether a pod was not in the first worker group: it is a replacement, or was added."""
    joined, number = samples.value(GROUPS_JOINED), samples.value(Metric.RENDEZVOUS_ROUND)
    return joined is not None and number is not None and 0 < joined < number


def _was_resumed(job: Object) -> bool:
    """Return whether a job without a queue was suspended before: its pods are not those of its first start.

    A submission creates the root suspended, and resumes it once the job's other objects exist.
    """
    suspended, metadata = condition_of(job, "Suspended"), job["metadata"]
    if suspended.get("status") != "False" or KUEUE_QUEUE in (metadata.get("labels") or {}):
        return False
    resumed, created = epoch(suspended.get("lastTransitionTime")), epoch(metadata.get("creationTimestamp"))
    return resumed is None or created is None or resumed - created > _SUBMISSION_SECONDS


def submission_time(job: Object) -> float | None:
    """Return the Unix time of a job's submission; None if unknown."""
    text = (job["metadata"].get("annotations") or {}).get(Annotation.SUBMITTED, "")
    created = epoch(job["metadata"].get("creationTimestamp"))
    try:
        exact = float(text)
    except ValueError:
        return created
    # Clocks differ, and the annotation may have been copied from another job.
    return exact if created is not None and abs(exact - created) < 60.0 else created


@dataclass(slots=True, kw_only=True)
class _Chain:
    """Phases of one pod."""

    pod: str
    begun: float
    seconds: dict[str, float] = field(default_factory=dict)
    current: StartupPhase | None = None
    ready: float = 0.0
    """Unix time at which the pod could join the process group."""
    launched: float = 0.0
    """Unix time at which the launcher started."""
    end: float = 0.0

    @property
    def place(self) -> int:
        """Number of the current phase."""
        return [*StartupPhase].index(self.current) if self.current is not None else len(StartupPhase)

    def startup(self, submitted: float) -> Startup:
        """Return the start of the job as this pod saw it."""
        return Startup(submitted=submitted, seconds=dict(self.seconds), current=self.current, pod=self.pod)

    def until(self, phase: StartupPhase, moment: float) -> None:
        """End a phase at a Unix time. Nothing is added if an earlier phase ended later."""
        self.add(phase, moment - self.end)

    def add(self, phase: StartupPhase, seconds: float) -> None:
        """Add seconds to a phase."""
        if seconds > 0.0:
            self.seconds[str(phase)] = self.seconds.get(str(phase), 0.0) + seconds
            self.end += seconds

    @classmethod
    def of(cls, pod: Object, samples: Samples | None, pulls: Mapping[str, float], submitted: float) -> _Chain:
        """Return the phases of a pod as far as it has come."""
        chain = cls(pod=_name(pod), begun=submitted, end=submitted)
        chain.current = chain._in_cluster(pod, pulls, samples)
        if chain.current is None:
            chain.current = chain._in_pod(samples or Samples())
        return chain

    def _in_cluster(self, pod: Object, pulls: Mapping[str, float], samples: Samples | None) -> StartupPhase | None:
        """Add the phases before the container runs; return the current one, or None once it runs."""
        self.until(StartupPhase.QUEUE, epoch(pod["metadata"].get("creationTimestamp")) or self.end)
        started = samples.value(Metric.AGENT_START) if samples else None
        started = started or _first_start(pod)
        scheduled = condition_of(pod, "PodScheduled")
        if scheduled.get("status") == "True":
            self.until(StartupPhase.SCHEDULE, epoch(scheduled.get("lastTransitionTime")) or self.end)
        elif started is None:
            return StartupPhase.SCHEDULE
        if started is None:
            return StartupPhase.PULL if _is_pulling(pod, pulls) else StartupPhase.CONTAINER
        self.launched, left = started, max(0.0, started - self.end)
        self.add(StartupPhase.PULL, min(left, pulls.get(self.pod, _pull_by_conditions(pod, started))))
        self.until(StartupPhase.CONTAINER, started)
        return None

    def _in_pod(self, samples: Samples) -> StartupPhase | None:
        """Add the phases that the pod has measured; return the current one, or None after the first step."""
        measured = samples.by(MetricLabel.PHASE, Metric.STARTUP)
        self.ready = self.end + sum(measured.get(phase, 0.0) for phase in _BEFORE_MEETING)
        for phase in IN_POD:
            self.add(phase, measured.get(phase, 0.0))
        # A launcher that waits for the group before its worker starts has measured a part of the rendezvous early.
        if missing := [phase for phase in IN_POD if phase not in measured]:
            return _current_phase(missing[0], samples)
        return None


def _current_phase(phase: StartupPhase, samples: Samples) -> StartupPhase:
    """Return the current phase, given the first one without a measurement. The launcher of a script that starts only
    in its group waits for the group before any worker runs.
    """
    states = samples.by(MetricLabel.STATE, Metric.GROUP_STATE)
    waits = any(states.get(state) == 1.0 for state in (GroupState.PENDING, GroupState.RENDEZVOUS))
    return StartupPhase.RENDEZVOUS if phase is StartupPhase.INTERPRETER and waits else phase


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _last_samples(pod: Object) -> Samples:
    """Return the start that an ended pod has left in its termination message, as metrics."""
    left = termination_message.startup(pod)
    if "began" not in left:
        return Samples()
    phases: list[tuple[Labels, float]] = [
        ({MetricLabel.PHASE.value: name}, left[name]) for name in IN_POD if name in left
    ]
    return Samples({str(Metric.STARTUP): phases, str(Metric.AGENT_START): [({}, left["began"])]})


def _first_start(pod: Object) -> float | None:
    """Return the Unix time at which the container ran for the first time that is known."""
    status = main_status(pod)
    known = [
        moment
        for state in (status.get("lastState") or {}, status.get("state") or {})
        for how in ("terminated", "running")
        if (moment := epoch((state.get(how) or {}).get("startedAt"))) is not None
    ]
    return min(known, default=None)


def _is_pulling(pod: Object, pulls: Mapping[str, float]) -> bool:
    waiting = (main_status(pod).get("state") or {}).get("waiting") or {}
    return waiting.get("reason") in _PULL_REASONS or pulls.get(_name(pod)) == 0.0


def _pull_by_conditions(pod: Object, started: float) -> float:
    """Return the seconds from the pod's network to its first container, where they are too many for its creation."""
    network = epoch(condition_of(pod, "PodReadyToStartContainers").get("lastTransitionTime"))
    first: Mapping[str, Any] = next(iter((pod.get("status") or {}).get("initContainerStatuses") or ()), {})
    begun = [epoch((first.get("state") or {}).get(how, {}).get("startedAt")) for how in ("terminated", "running")]
    seconds = min([moment for moment in begun if moment is not None], default=started) - (network or started)
    return seconds if seconds > _CREATION_SECONDS else 0.0


def _pull_seconds(events: Iterable[Object]) -> dict[str, float]:
    """Return the seconds that each pod has pulled images; 0 while its first pull runs."""
    seconds: dict[str, float] = {}
    for pod, reason, message in _pod_events(events):
        if reason == _PULL_BEGINS:
            seconds.setdefault(pod, 0.0)
        elif reason == _PULL_ENDS and (found := _PULLED.match(message)):
            seconds[pod] = seconds.get(pod, 0.0) + _duration(found[2])
    return seconds


def _image_bytes(events: Iterable[Object]) -> int | None:
    """Return the size of the largest image that a pod has pulled; None if unknown."""
    sizes = [
        int(found[1])
        for _, reason, message in _pod_events(events)
        if reason == _PULL_ENDS
        for found in _SIZE.finditer(message)
    ]
    return max(sizes, default=None)


def _pod_events(events: Iterable[Object]) -> Iterator[tuple[str, str, str]]:
    for event in events:
        involved = event.get("involvedObject") or {}
        if involved.get("kind") == "Pod":
            yield str(involved.get("name")), str(event.get("reason")), str(event.get("message"))


def _duration(text: str) -> float:
    """Return the seconds of a duration in Go's notation.

    >>> _duration("1m2.5s")
    62.5
    """
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
