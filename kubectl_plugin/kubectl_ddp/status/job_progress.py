"""Progress of a job: steps, speed, goodput and size of the group, from its pods, its summary and its annotations.

Pods may be gone. Commands keep the start in an annotation as soon as it is over, and start time, restarts, steps and
samples before they suspend the job (:mod:`kubectl_ddp.observe.job_results`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from ddp_trainer.common import goodput as definition
from ddp_trainer.common.constants import Annotation, RestartCause
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.common.time_classes import JobTime
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import is_partially_admitted
from kubectl_ddp.kube.objects import Object, Queued, condition_of
from kubectl_ddp.status import termination_message
from kubectl_ddp.status.metrics_parser import Labels, Samples
from kubectl_ddp.status.rank_status import RankActivity, RankState

_NUMBERS: Final = (int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierPods:
    """What earlier pods of a job reported. Its default is nothing."""

    startup: dict[str, float] = field(default_factory=dict)
    """Start of the job, as in its summary; empty if unknown."""
    started: float | None = None
    """Unix time at which the job started for the first time, until then."""
    uid: str = ""
    """UID of the first of the pods that a suspension stopped; empty without one. While it is there, it still counts."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by cause until then."""
    step: int | None = None
    """Last step until then."""
    is_counted: bool = False
    """True if the pods counted the steps of a script that does not report them. Later pods count from 0."""
    samples: float = 0.0
    """Samples that all ranks had trained until then."""
    seconds: float = 0.0
    """Seconds that they took for them."""

    @classmethod
    def of(cls, job: Object) -> Self:
        """Return what the annotation of a job says. A malformed one counts as missing, since users may write it."""
        try:
            stored = json.loads((job["metadata"].get("annotations") or {}).get(Annotation.EARLIER, "{}"))
        except (ValueError, RecursionError, TypeError):
            return cls()
        if not isinstance(stored, dict):
            return cls()
        step, started = stored.get("step"), stored.get("started")
        return cls(
            startup={name: value for name, value in _map(stored.get("startup")).items() if isinstance(value, _NUMBERS)},
            started=started if isinstance(started, _NUMBERS) else None,
            uid=str(stored.get("uid") or ""),
            restarts={cause: count for cause, count in _map(stored.get("restarts")).items() if isinstance(count, int)},
            step=step if isinstance(step, int) else None,
            is_counted=stored.get("is_counted") is True,
            **{name: stored[name] for name in ("samples", "seconds") if isinstance(stored.get(name), _NUMBERS)},
        )

    def to_annotation(self) -> str:
        """Return the text of the annotation."""
        return json.dumps({name: value for name, value in asdict(self).items() if value}, separators=(",", ":"))

    def total_step(self, step: int | None, uids: Collection[str]) -> int | None:
        """Return the last step of the whole run.

        Args:
            step: Last step that the present pods have reported.
            uids: UIDs of the present pods.
        """
        if self.step is None or not self.is_counted:
            return step
        return max(self.step, step or 0) if self.uid in uids else self.step + (step or 0)

    def total_work(self, samples: float, seconds: float, uids: Collection[str]) -> tuple[float, float]:
        """Return the samples of the whole run, and the seconds for them.

        Args:
            samples: Samples that the present pods have trained.
            seconds: Seconds that they took for them.
            uids: UIDs of the present pods.
        """
        if self.uid in uids:
            return max(self.samples, samples), max(self.seconds, seconds)
        return self.samples + samples, self.seconds + seconds

    def total_restarts(self, counted: Mapping[str, int], uids: Collection[str]) -> dict[str, int]:
        """Return the restarts of the whole run by cause.

        Args:
            counted: Restarts that the present pods have counted.
            uids: UIDs of the present pods.
        """
        causes = {**self.restarts, **counted}
        if self.uid in uids:
            return {cause: max(self.restarts.get(cause, 0), counted.get(cause, 0)) for cause in causes}
        return {cause: self.restarts.get(cause, 0) + counted.get(cause, 0) for cause in causes}


def _map(value: object) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


GATED: Final = "SchedulingGated"
"""Reason of the condition PodScheduled of a pod that waits for its quota."""


def granted_size(job: Object, workers: Iterable[Object], queue: Queued | None) -> tuple[int, int, str]:
    """Return the number of nodes that have quota and a machine, the wanted number, and a short reason if it is larger.

    Args:
        job: Root object of a job that has not ended.
        workers: Its worker pods.
        queue: Its position in a queue.
    """
    desired, is_partial = job_kinds.desired_nodes(job), is_partially_admitted(job)
    wanted = max(desired, job_kinds.pod_count(job, job_kinds.bounds(job)[1])) if is_partial else desired
    if queue is not None and not queue.is_admitted:
        return 0, wanted, "" if queue.is_held else "waits for quota"
    if job_kinds.is_suspend_requested(job):
        return 0, wanted, ""
    reasons = [_unscheduled_reason(pod) for pod in workers]
    gated, without_machine = reasons.count(GATED), reasons.count("Unschedulable")
    granted = max(0, desired - gated - without_machine)
    if gated:
        return granted, wanted, f"{gated} {'wait' if gated > 1 else 'waits'} for quota"
    if without_machine:
        return granted, wanted, f"{without_machine} {'find' if without_machine > 1 else 'finds'} no machine"
    if granted < wanted:
        return granted, wanted, "less quota at its start"
    wanted, reason = _size_before_controller(job, desired)
    return granted, wanted, reason


def _size_before_controller(job: Object, desired: int) -> tuple[int, str]:
    """Return the size that the job would have without the platform's controller, and why the controller reduced it."""
    size = job_kinds.json_annotation(job, Annotation.SIZE)
    wanted = size.get("wanted")
    if size.get("granted") == desired and isinstance(wanted, int) and wanted > desired:
        return wanted, str(size.get("reason", ""))
    return desired, ""


def _unscheduled_reason(pod: Object) -> str:
    """Return why a pod has no machine yet; empty if it has one."""
    if pod["spec"].get("nodeName"):
        return ""
    return str(condition_of(pod, "PodScheduled").get("reason", ""))


LEAST_COUNT: Final = 2
"""Failures from which the start of a job counts as failing again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyFailures:
    """Failures before the first step of a job."""

    count: int
    """Restarts after failures."""
    reason: str
    """Most frequent :class:`~ddp_trainer.common.constants.FailureReason` of the pod that failed last."""
    rank: int
    """Rank that failed last."""
    pod: str
    last: float
    """Unix time of the last failure."""

    def __str__(self) -> str:
        return f"{self.count} failures before the first step, the last of rank {self.rank}: {self.reason}"


def find_early_failures(
    samples: Mapping[str, Samples], restarts: Mapping[str, int], step: int | None
) -> EarlyFailures | None:
    """Return the failures of a job that has not stepped; None if there are fewer than two.

    Args:
        samples: Name of a pod → its metrics.
        restarts: Restarts of the job by cause.
        step: Last step of the job; None if none was reported.
    """
    count = restarts.get(RestartCause.FAILURE, 0)
    failed_at = {pod: found.value(Metric.LAST_FAILURE) or 0.0 for pod, found in samples.items()}
    pod = max(failed_at, key=failed_at.__getitem__, default="")
    if step or count < LEAST_COUNT or not failed_at.get(pod):
        return None
    by_reason = samples[pod].by(MetricLabel.REASON, Metric.FAILURES)
    return EarlyFailures(
        count=count,
        reason=max(by_reason, key=by_reason.__getitem__, default=""),
        rank=int(samples[pod].value(Metric.LAST_FAILED_RANK) or 0),
        pod=pod,
        last=failed_at[pod],
    )


MOST_NAMES: Final = 32
"""Values with names of a script's own that are read. A pod of ours exports no more."""


def progress_fields(
    pods: Mapping[str, Samples], ranks: Sequence[RankState], summary: Mapping[str, Any] | None, *, has_succeeded: bool
) -> dict[str, Any]:
    """Return the fields of a job's state about steps, speed and group, from metrics, and from the summary of its end.

    Args:
        pods: Name of a pod → its metrics.
        ranks: Ranks of the job.
        summary: Summary of the job, if it is over.
        has_succeeded: True if the job is over and has succeeded; then the summary alone counts.
    """
    if summary is not None:
        at_end = termination_message.progress(summary, has_succeeded=has_succeeded)
        return at_end if has_succeeded else {**_progress_of(pods, ranks), **at_end}
    return _progress_of(pods, ranks)


def _progress_of(samples: Mapping[str, Samples], ranks: Sequence[RankState]) -> dict[str, Any]:
    alive = [rank for rank in ranks if rank.state is not RankActivity.DOWN]
    step = max((rank.step for rank in ranks if rank.step is not None), default=None)
    latest = _Latest(samples)
    planned = latest.value(Metric.STEPS_PLANNED)
    pace = [rank.seconds_per_step for rank in alive if rank.seconds_per_step is not None]
    rates = [rank.samples_per_second for rank in alive if rank.samples_per_second is not None]
    world = _optional_int(latest.value(Metric.WORLD_SIZE))
    eta = None
    if step is not None and planned is not None and pace:
        eta = max(0.0, planned - step) * sum(pace) / len(pace)
    return {
        "step": step,
        "steps_planned": _optional_int(planned),
        "epoch": _optional_int(latest.value(Metric.EPOCH)),
        "loss": latest.value(Metric.LOSS),
        "learning_rate": latest.value(Metric.LEARNING_RATE),
        "values": latest.named_values(Metric.USER_VALUE),
        "throughput": sum(rates) * max(1.0, (world or 0) / len(ranks)) if rates else None,
        "eta_seconds": eta,
        "goodput": goodput(samples.values()),
        "world_size": world,
        "generation": _optional_int(latest.value(Metric.RENDEZVOUS_ROUND)),
    }


class _Latest:
    """Values of families that one pod reports for the whole job.

    The pod with the newest rendezvous and the most ranks that are up takes precedence, because rank 0 may have left old
    values on another pod. Among equal pods, the largest value is the newest.
    """

    def __init__(self, samples: Mapping[str, Samples]) -> None:
        self._pods = [
            ((pod.value(Metric.RENDEZVOUS_ROUND) or 0.0, pod.total(Metric.RANK_UP)), pod) for pod in samples.values()
        ]

    def value(self, family: str) -> float | None:
        """Return the value of a family; None if no pod reports it."""
        values = [(order, value) for order, pod in self._pods if (value := pod.value(family)) is not None]
        return max(values)[-1] if values else None

    def named_values(self, family: str) -> dict[str, float]:
        """Return the values of a family by the names that the script gave them; any program may have written them.

        The newest group takes precedence, and in it the lowest rank that has reported the name.
        """
        named = [
            (-generation, _rank_of(labels), labels[MetricLabel.NAME], value)
            for (generation, _), pod in self._pods
            for labels, value in pod.all(family)
            if MetricLabel.NAME in labels
        ]
        found: dict[str, float] = {}
        for _, _, name, value in sorted(named, key=lambda one: one[:2]):
            found.setdefault(clean_text(name), value)
        return dict([*found.items()][:MOST_NAMES])


def _rank_of(labels: Labels) -> int:
    """Return the rank of a sample; 0 without the label, as in versions that export those of rank 0 alone."""
    rank = labels.get(MetricLabel.RANK, "")
    return int(rank) if rank.isdecimal() else 0


def _optional_int(number: float | None) -> int | None:
    return int(number) if number is not None else None


def sample_totals(pods: Iterable[Samples]) -> tuple[float, float]:
    """Return the samples that all ranks of these pods have trained, and the longest time of a rank in steps."""
    ranks = [of_rank for pod in pods for of_rank in pod.split(MetricLabel.RANK).values()]
    seconds = max((of_rank.total(Metric.PHASE_SECONDS) for of_rank in ranks), default=0.0)
    return sum(of_rank.total(Metric.SAMPLES) for of_rank in ranks), seconds


def goodput(pods: Iterable[Samples]) -> float | None:
    """Return the goodput of the job so far, as defined by :func:`ddp_trainer.common.goodput.goodput`; None if unknown.

    Rank 0 accounts for the whole job. If it has moved, its former pod still reports an account, which is the shorter
    one.
    """
    accounts = [(elapsed, pod) for pod in pods if (elapsed := pod.total(Metric.JOB_TIME)) > 0]
    if not accounts:
        return None
    _, pod = max(accounts, key=lambda account: account[0])
    spent = {state: pod.total(Metric.JOB_TIME, state=state) for state in JobTime}
    return max(0.0, definition.goodput(spent, pod.total(Metric.LOST_PROGRESS)))
