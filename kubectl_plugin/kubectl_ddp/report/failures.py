"""Failures of workers that a job's series contain: which rank, when, and how long until the group trained again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import JobTime
from kubectl_ddp.report.series import POD, Series, chosen

_TOGETHER_SECONDS: Final = 2.0
"""Failures that follow each other this closely are one failure: a lost worker ends its peers' collectives."""
_TRAINING: Final = frozenset({JobTime.PRODUCTIVE, JobTime.DATA_WAIT, JobTime.CHECKPOINT_SAVE, JobTime.EVAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailure:
    """Worker processes that ended unexpectedly at about the same time; the first of them is described."""

    time: float
    """Unix time; of the reading that counted it, if the pod has not recorded it."""
    pod: str
    reason: str
    """A :class:`~ddp_trainer.common.constants.FailureReason`."""
    rank: int | None = None
    count: int = 1
    ranks_before: int | None = None
    """World size before the failure."""
    ranks_after: int | None = None
    """Size of the first group formed after it."""
    stopped_seconds: float | None = None
    """Time without training until the first group trained again."""
    restored_seconds: float | None = None
    """Upper bound of the time until a group of the former size trained again; None if none did."""


def find_failures(
    series: Sequence[Series], sizes: Sequence[tuple[float, float]], account: Sequence[Series]
) -> tuple[WorkerFailure, ...]:
    """Return the failures, oldest first.

    Args:
        series: All series of the job.
        sizes: Unix times and world sizes, ascending.
        account: The job's time accounting, one series per state, with common times.
    """
    found: list[WorkerFailure] = []
    for failure in sorted(_counted(series), key=lambda one: one.time):
        if found and failure.time - found[-1].time <= _TOGETHER_SECONDS:
            found[-1] = replace(found[-1], count=found[-1].count + failure.count)
        else:
            found.append(failure)
    return tuple(_with_recovery(failure, series, sizes, account) for failure in found)


def _counted(series: Sequence[Series]) -> Iterator[WorkerFailure]:
    times = {each.labels.get(POD, ""): dict(each.known()) for each in chosen(series, Metric.LAST_FAILURE)}
    ranks = {each.labels.get(POD, ""): dict(each.known()) for each in chosen(series, Metric.LAST_FAILED_RANK)}
    for each in chosen(series, Metric.FAILURES, MetricLabel.REASON):
        pod, before, read = each.labels.get(POD, ""), 0.0, 0.0
        readings = [(moment, count) for moment, count in each.known() if math.isfinite(count)]
        for index, (moment, count) in enumerate(readings):
            if count > before and (index or (each.is_whole and moment > each.times[0])):
                exact = times.get(pod, {}).get(moment, 0.0)
                rank = ranks.get(pod, {}).get(moment, math.nan)
                is_known = read - _TOGETHER_SECONDS < exact <= moment and exact > 0 and math.isfinite(rank)
                yield WorkerFailure(
                    time=exact if is_known else moment,
                    pod=pod,
                    reason=each.labels[MetricLabel.REASON],
                    rank=int(rank) if is_known else None,
                    count=round(count - before),
                )
            before, read = count, moment


def _with_recovery(
    failure: WorkerFailure, series: Sequence[Series], sizes: Sequence[tuple[float, float]], account: Sequence[Series]
) -> WorkerFailure:
    before = next((int(size) for moment, size in reversed(sizes) if moment < failure.time), None)
    formed, following = _formed_after(series, failure.time)
    if before is None or formed is None:
        return replace(failure, ranks_before=before)
    # A launcher reports the generation before the size, and a reading may fall between the two.
    after = next((int(size) for moment, size in reversed(sizes) if formed <= moment < following), before)
    since = formed if after >= before else following
    whole = next((moment for moment, size in sizes if moment >= since and size >= before), None)
    trained = _all_trained(series, before, whole) if whole is not None else None
    return replace(
        failure,
        ranks_before=before,
        ranks_after=after,
        stopped_seconds=_stopped(account, failure.time),
        restored_seconds=trained - failure.time if trained is not None else None,
    )


def _formed_after(series: Sequence[Series], time: float) -> tuple[float | None, float]:
    """Return when the first group after this time was formed, None if none was, and when the next one was."""
    rounds = sorted(
        (later, number)
        for each in chosen(series, Metric.RENDEZVOUS_ROUND)
        for (_, former), (later, number) in _pairs(each)
        if later > time and number > former
    )
    if not rounds:
        return None, math.inf
    formed, first = rounds[0]
    return formed, next((moment for moment, number in rounds if number > first), math.inf)


def _all_trained(series: Sequence[Series], count: int, since: float) -> float | None:
    """Return the time of the first reading by which each of ``count`` ranks has committed a step since ``since``."""
    first: dict[str, float] = {}
    for each in series:
        if each.name == Metric.STEPS and (rank := each.labels.get(MetricLabel.RANK)) is not None:
            grown = [later for (_, one), (later, other) in _pairs(each) if later >= since and other > one]
            if grown:
                first[rank] = min(first.get(rank, grown[0]), grown[0])
    return max(first.values()) if len(first) >= count else None


def _stopped(account: Sequence[Series], moment: float) -> float | None:
    """Return the seconds without training in the interval of the account that contains the failure at this time."""
    times = account[0].times if account else ()
    after = next((index for index, each in enumerate(times) if each > moment), None)
    if not after:
        return None
    for index in range(after, len(times)):
        grown = {
            each.labels[MetricLabel.STATE]: (each.values[index] or 0.0) - (each.values[after - 1] or 0.0)
            for each in account
        }
        if grown.get(JobTime.RESTART, 0.0) + grown.get(JobTime.HANG, 0.0) + grown.get(JobTime.ELASTIC_RESIZE, 0.0) > 0:
            return sum(seconds for state, seconds in grown.items() if state not in _TRAINING)
    return None


def _pairs(series: Series) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return itertools.pairwise(series.known())
