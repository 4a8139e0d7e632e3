"""Progress of a job: steps, speed, goodput and size of the group, from the metrics of its pods and its summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ddp_trainer.common import goodput as definition
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.common.time_classes import JobTime
from kubectl_ddp.status import run_summary
from kubectl_ddp.status.metrics_parser import Labels, Samples
from kubectl_ddp.status.rank_status import RankActivity, RankState

MOST_NAMES: Final = 32
"""Values with names of a script's own that are read. A pod of ours exports no more."""


def progress_fields(
    told: Mapping[str, Samples], ranks: Sequence[RankState], summary: Mapping[str, Any] | None, *, has_succeeded: bool
) -> dict[str, Any]:
    """Return the fields of a job's state about steps, speed and group, from metrics, and from the summary of its end.

    Args:
        told: Name of a pod → its metrics.
        ranks: Ranks of the job.
        summary: Summary of the job, if it is over.
        has_succeeded: True if the job is over and has succeeded; then the summary alone counts.
    """
    if summary is not None:
        told_last = run_summary.progress(summary, has_succeeded=has_succeeded)
        return told_last if has_succeeded else {**_progress_of(told, ranks), **told_last}
    return _progress_of(told, ranks)


def _progress_of(told: Mapping[str, Samples], ranks: Sequence[RankState]) -> dict[str, Any]:
    alive = [rank for rank in ranks if rank.state is not RankActivity.DOWN]
    step = max((rank.step for rank in ranks if rank.step is not None), default=None)
    latest = _Latest(told)
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
        "goodput": goodput(told.values()),
        "world_size": world,
        "generation": _optional_int(latest.value(Metric.RENDEZVOUS_ROUND)),
    }


class _Latest:
    """Values of families that one pod reports for the whole job.

    The pod with the newest rendezvous and the most ranks that are up takes precedence, because rank 0 may have left old
    values on another pod. Among equal pods, the largest value is the newest.
    """

    def __init__(self, told: Mapping[str, Samples]) -> None:
        self._told = [
            ((said.value(Metric.RENDEZVOUS_ROUND) or 0.0, said.total(Metric.RANK_UP)), said) for said in told.values()
        ]

    def value(self, family: str) -> float | None:
        """Return the value of a family; None if no pod reports it."""
        values = [(order, value) for order, said in self._told if (value := said.value(family)) is not None]
        return max(values)[-1] if values else None

    def named_values(self, family: str) -> dict[str, float]:
        """Return the values of a family by the names that the script gave them; any program may have written them.

        The newest group takes precedence, and in it the lowest rank that has reported the name.
        """
        told = [
            (-generation, _rank_of(labels), labels[MetricLabel.NAME], value)
            for (generation, _), said in self._told
            for labels, value in said.all(family)
            if MetricLabel.NAME in labels
        ]
        found: dict[str, float] = {}
        for _, _, name, value in sorted(told, key=lambda one: one[:2]):
            found.setdefault(clean_text(name), value)
        return dict([*found.items()][:MOST_NAMES])


def _rank_of(labels: Labels) -> int:
    """Return the rank of a sample; 0 without the label, as in versions that export those of rank 0 alone."""
    rank = labels.get(MetricLabel.RANK, "")
    return int(rank) if rank.isdecimal() else 0


def _optional_int(number: float | None) -> int | None:
    return int(number) if number is not None else None


def trained_samples(told: Iterable[Samples]) -> tuple[float, float]:
    """Return the samples that all ranks of these pods have trained, and the longest time of a rank in steps."""
    ranks = [said for pod in told for said in pod.split(MetricLabel.RANK).values()]
    seconds = max((said.total(Metric.PHASE_SECONDS) for said in ranks), default=0.0)
    return sum(said.total(Metric.SAMPLES) for said in ranks), seconds


def goodput(told: Iterable[Samples]) -> float | None:
    """Return the goodput of the job so far, as defined by :func:`ddp_trainer.common.goodput.goodput`; None if unknown.

    Rank 0 accounts for the whole job. If it has moved, its former pod still reports an account, which is the shorter
    one.
    """
    accounts = [(elapsed, said) for said in told if (elapsed := said.total(Metric.JOB_TIME)) > 0]
    if not accounts:
        return None
    _, said = max(accounts, key=lambda account: account[0])
    spent = {state: said.total(Metric.JOB_TIME, state=state) for state in JobTime}
    return max(0.0, definition.goodput(spent, said.total(Metric.LOST_PROGRESS)))
