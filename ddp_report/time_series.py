"""Summary of a job's series on one time axis: throughput, loss, phases, states of time, ranks, changes and failures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ddp_report.series import (
    POD,
    Series,
    Timeline,
    Values,
    build_timeline,
    elementwise_ratio,
    growth,
    merge_growth,
    select_series,
)
from ddp_trainer.common.constants import RestartCause
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.common.time_classes import JobTime, Phase
from kubectl_ddp.status.job_progress import MOST_NAMES
from kubectl_ddp.util.text_table import pluralize

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
    for failure in sorted(_count_failures(series), key=lambda one: one.time):
        if found and failure.time - found[-1].time <= _TOGETHER_SECONDS:
            found[-1] = replace(found[-1], count=found[-1].count + failure.count)
        else:
            found.append(failure)
    return tuple(_with_recovery(failure, series, sizes, account) for failure in found)


def _count_failures(series: Sequence[Series]) -> Iterator[WorkerFailure]:
    times = {gauge.labels.get(POD, ""): dict(gauge.known()) for gauge in select_series(series, Metric.LAST_FAILURE)}
    ranks = {gauge.labels.get(POD, ""): dict(gauge.known()) for gauge in select_series(series, Metric.LAST_FAILED_RANK)}
    for counter in select_series(series, Metric.FAILURES, MetricLabel.REASON):
        pod, before, read = counter.labels.get(POD, ""), 0.0, 0.0
        readings = [(moment, count) for moment, count in counter.known() if math.isfinite(count)]
        for index, (moment, count) in enumerate(readings):
            if count > before and (index or (counter.is_complete and moment > counter.times[0])):
                exact = times.get(pod, {}).get(moment, 0.0)
                rank = ranks.get(pod, {}).get(moment, math.nan)
                is_known = read - _TOGETHER_SECONDS < exact <= moment and exact > 0 and math.isfinite(rank)
                yield WorkerFailure(
                    time=exact if is_known else moment,
                    pod=pod,
                    reason=counter.labels[MetricLabel.REASON],
                    rank=int(rank) if is_known else None,
                    count=round(count - before),
                )
            before, read = count, moment


def _with_recovery(
    failure: WorkerFailure, series: Sequence[Series], sizes: Sequence[tuple[float, float]], account: Sequence[Series]
) -> WorkerFailure:
    before = next((int(size) for moment, size in reversed(sizes) if moment < failure.time), None)
    formed, following = _next_group_times(series, failure.time)
    if before is None or formed is None:
        return replace(failure, ranks_before=before)
    # A launcher reports the generation before the size, and a reading may fall between the two.
    after = next((int(size) for moment, size in reversed(sizes) if formed <= moment < following), before)
    since = formed if after >= before else following
    restored = next((moment for moment, size in sizes if moment >= since and size >= before), None)
    training_totals = _all_steps_time(series, before, restored) if restored is not None else None
    return replace(
        failure,
        ranks_before=before,
        ranks_after=after,
        stopped_seconds=_stopped(account, failure.time),
        restored_seconds=training_totals - failure.time if training_totals is not None else None,
    )


def _next_group_times(series: Sequence[Series], time: float) -> tuple[float | None, float]:
    """Return when the first group after this time was formed, None if none was, and when the next one was."""
    rounds = sorted(
        (later, number)
        for gauge in select_series(series, Metric.RENDEZVOUS_ROUND)
        for (_, former), (later, number) in _pairs(gauge)
        if later > time and number > former
    )
    if not rounds:
        return None, math.inf
    formed, first = rounds[0]
    return formed, next((moment for moment, number in rounds if number > first), math.inf)


def _all_steps_time(series: Sequence[Series], count: int, since: float) -> float | None:
    """Return the time of the first reading by which each of ``count`` ranks has committed a step since ``since``."""
    first: dict[str, float] = {}
    for counter in series:
        if counter.name == Metric.STEPS and (rank := counter.labels.get(MetricLabel.RANK)) is not None:
            grown = [later for (_, one), (later, other) in _pairs(counter) if later >= since and other > one]
            if grown:
                first[rank] = min(first.get(rank, grown[0]), grown[0])
    return max(first.values()) if len(first) >= count else None


def _stopped(account: Sequence[Series], moment: float) -> float | None:
    """Return the seconds without training in the interval of the account that contains the failure at this time."""
    times = account[0].times if account else ()
    after = next((index for index, time in enumerate(times) if time > moment), None)
    if not after:
        return None
    for index in range(after, len(times)):
        grown = {
            counter.labels[MetricLabel.STATE]: (counter.values[index] or 0.0) - (counter.values[after - 1] or 0.0)
            for counter in account
        }
        if grown.get(JobTime.RESTART, 0.0) + grown.get(JobTime.HANG, 0.0) + grown.get(JobTime.ELASTIC_RESIZE, 0.0) > 0:
            return sum(seconds for state, seconds in grown.items() if state not in _TRAINING)
    return None


def _pairs(series: Series) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    return itertools.pairwise(series.known())


LOST = "lost_progress"
"""State beyond those of ``constants.JobTime``: productive time whose steps had to be repeated."""


class Kind(StrEnum):
    """Kind of a change."""

    RESTART = "restart"
    """The worker group restarted, after a failure or on request."""
    SCALE = "scale"
    """Ranks joined or left."""
    FAILURE = "failure"
    """A container failed, or the first error occurred."""


@dataclass(frozen=True, slots=True)
class Change:
    """One event in the life of the job."""

    time: float
    kind: Kind
    text: str
    label: str = ""
    """Two or three words for the plots; empty for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHistory:
    """History of one rank on one pod."""

    rank: int
    local_rank: int | None
    pod: str
    own: Values
    """Step time in seconds without waiting for other ranks, per interval."""
    steps: float
    seconds: float
    """Total seconds in steps."""
    waited: float
    """Part of these seconds spent waiting for other ranks or for the network."""


@dataclass(frozen=True, slots=True)
class UserValue:
    """Curve of a value that the script names itself."""

    values: Values
    broken: tuple[int, ...]
    """Intervals in which it was not finite."""
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimeSeries:
    """All summarized series. Values are one per interval of the timeline."""

    timeline: Timeline
    throughput: Values
    """Samples per second over all ranks."""
    samples: float
    loss: Values
    broken: tuple[int, ...]
    """Intervals in which the loss was not finite."""
    user_values: Mapping[str, UserValue] = field(default_factory=dict)
    """Values that the script names itself, by name."""
    phases: Mapping[str, Values]
    """Seconds of all ranks by phase; phases without time are left out."""
    states: Mapping[str, Values]
    """Seconds of the job's wall-clock time by state."""
    spent: Mapping[str, float]
    """Total seconds of the job by state, and lost progress."""
    world: Values
    worlds: tuple[int, ...]
    """World sizes in order, without consecutive repetitions."""
    ranks: tuple[RankHistory, ...] = ()
    failures: tuple[WorkerFailure, ...] = ()
    changes: tuple[Change, ...] = field(default=())

    @property
    def training_totals(self) -> tuple[float, float]:
        """Samples, and the seconds of the intervals that have some."""
        known = [value for value in self.throughput if value]
        return self.timeline.width * sum(known), self.timeline.width * len(known)


def summarize_series(series: Sequence[Series]) -> JobTimeSeries | None:
    """Summarize the series; return None if no series has two samples."""
    account = _account(select_series(series, Metric.JOB_TIME, MetricLabel.STATE))
    timeline = build_timeline(series, since=account[0].times[0] if account else None)
    if timeline is None:
        return None
    samples = merge_growth([growth(counter, timeline) for counter in select_series(series, Metric.SAMPLES)], timeline)
    loss, broken = _mean_values(select_series(series, Metric.LOSS), timeline)
    sizes = list(_sizes(series))
    return JobTimeSeries(
        timeline=timeline,
        throughput=samples.per_second(timeline.width),
        samples=sum(samples.amounts),
        loss=loss,
        broken=broken,
        user_values=_user_values(series, timeline),
        phases=_phase_seconds(series, timeline),
        states=_states(account, timeline),
        spent=_seconds_by_state(series),
        world=_forward_fill(sizes, timeline),
        worlds=_each_once(int(size) for _, size in sizes),
        ranks=_ranks(series, timeline),
        failures=find_failures(series, sizes, account),
        changes=tuple(sorted([*_restarts(series), *_scale_changes(sizes)], key=lambda one: one.time)),
    )


def _user_values(series: Sequence[Series], timeline: Timeline) -> dict[str, UserValue]:
    """Return the values that the script names itself, each of the lowest rank that has reported it."""
    found: dict[str, dict[int, list[Series]]] = {}
    for gauge in select_series(series, Metric.USER_VALUE, MetricLabel.NAME, MetricLabel.RANK):
        rank = gauge.labels[MetricLabel.RANK]
        if rank.isdecimal() and any(gauge.known()):
            of_name = found.setdefault(clean_text(gauge.labels[MetricLabel.NAME]), {})
            of_name.setdefault(int(rank), []).append(gauge)
    lowest = {name: of_name[min(of_name)] for name, of_name in [*found.items()][:MOST_NAMES]}
    return {
        name: UserValue(*_mean_values(of_rank, timeline), max(last for gauge in of_rank for last in gauge.known())[1])
        for name, of_rank in lowest.items()
    }


def _mean_values(series: Iterable[Series], timeline: Timeline) -> tuple[Values, tuple[int, ...]]:
    """Return the mean of the finite values in each interval, and the intervals with values that are not finite."""
    parts: list[list[float]] = [[] for _ in range(timeline.count)]
    broken: set[int] = set()
    for gauge in series:
        for moment, value in gauge.known():
            if math.isfinite(value):
                parts[timeline.part(moment)].append(value)
            else:
                broken.add(timeline.part(moment))
    return tuple(sum(part) / len(part) if part else None for part in parts), tuple(sorted(broken))


def _phase_seconds(series: Sequence[Series], timeline: Timeline) -> dict[str, Values]:
    counters = select_series(series, Metric.PHASE_SECONDS, MetricLabel.PHASE)
    found: dict[str, Values] = {}
    for phase in Phase:
        grown = [growth(counter, timeline) for counter in counters if counter.labels[MetricLabel.PHASE] == phase]
        merged = merge_growth(grown, timeline)
        if any(merged.amounts):
            found[phase] = merged.known(timeline.width)
    return found


def _account(series: Sequence[Series]) -> list[Series]:
    """Return the job's time accounting as one series per state, merged over all pods.

    The accounting changes when a step is committed, and then covers the whole time since its last change. Samples
    without a change are left out, so that each remaining interval is the time it accounts for. If the time before the
    first sample is short, the series starts with the job.
    """
    readings: dict[float, dict[str, float]] = {}
    for counter in series:
        for moment, value in counter.known():
            state = counter.labels[MetricLabel.STATE]
            readings.setdefault(moment, {})[state] = max(value, readings.get(moment, {}).get(state, 0.0))
    changes: list[tuple[float, dict[str, float]]] = []
    for moment, spent in sorted(readings.items()):
        if not changes or sum(spent.values()) > sum(changes[-1][1].values()):
            changes.append((moment, spent))
    if changes and 0 < (before := sum(changes[0][1].values())) <= changes[-1][0] - changes[0][0]:
        changes.insert(0, (changes[0][0] - before, {}))
    times = [moment for moment, _ in changes]
    states = {state for _, spent in changes for state in spent}
    return [
        Series(Metric.JOB_TIME, times, [spent.get(state, 0.0) for _, spent in changes], {MetricLabel.STATE: state})
        for state in sorted(states)
    ]


def _states(account: Sequence[Series], timeline: Timeline) -> dict[str, Values]:
    grown = {counter.labels[MetricLabel.STATE]: growth(counter, timeline) for counter in account}
    return {state: counter.known(timeline.width) for state, counter in grown.items() if any(counter.amounts)}


def _seconds_by_state(series: Sequence[Series]) -> dict[str, float]:
    """Return the time accounting of the most advanced pod; states without time are left out."""
    found: dict[str, float] = {}
    for counter in select_series(series, Metric.JOB_TIME, MetricLabel.STATE):
        state = counter.labels[MetricLabel.STATE]
        found[state] = max(found.get(state, 0.0), counter.last or 0.0)
    lost = max((counter.last or 0.0 for counter in select_series(series, Metric.LOST_PROGRESS)), default=0.0)
    return {state: seconds for state, seconds in found.items() if seconds > 0} | ({LOST: lost} if lost > 0 else {})


def _ranks(series: Sequence[Series], timeline: Timeline) -> tuple[RankHistory, ...]:
    whose = (MetricLabel.RANK, MetricLabel.LOCAL_RANK)
    steps = _by_rank(series, Metric.STEPS, whose) | _by_rank(series, Metric.STEPS, whose[:1])
    seconds = _by_rank(series, Metric.PHASE_SECONDS, whose) | _by_rank(series, Metric.PHASE_SECONDS, whose[:1])
    waited = _by_rank(series, Metric.PHASE_SECONDS, (*whose, MetricLabel.PHASE))
    waited |= _by_rank(series, Metric.PHASE_SECONDS, (whose[0], MetricLabel.PHASE))
    found = [
        _rank(key, of_steps, seconds.get(key), waited.get(key), timeline)
        for key, of_steps in steps.items()
        if key[1].isdecimal()
    ]
    return tuple(sorted(found, key=lambda one: (one.rank, one.pod)))


_Key = tuple[str, str, str]
"""Pod, rank, local rank."""


def _by_rank(series: Sequence[Series], name: str, labels: Sequence[str]) -> dict[_Key, Series]:
    return {
        (one.labels.get(POD, ""), one.labels[MetricLabel.RANK], one.labels.get(MetricLabel.LOCAL_RANK, "")): one
        for one in select_series(series, name, *labels)
    }


def _rank(key: _Key, steps: Series, seconds: Series | None, waited: Series | None, timeline: Timeline) -> RankHistory:
    pod, rank, local = key
    nothing = merge_growth([], timeline)
    in_steps = growth(seconds, timeline) if seconds is not None else nothing
    in_wait = growth(waited, timeline) if waited is not None else nothing
    taken = growth(steps, timeline)
    own = tuple(max(0.0, total - part) for total, part in zip(in_steps.amounts, in_wait.amounts, strict=True))
    return RankHistory(
        rank=int(rank),
        local_rank=int(local) if local.isdecimal() else None,
        pod=pod,
        own=elementwise_ratio(own, tuple(amount if amount > 1e-6 else None for amount in taken.amounts)),
        steps=steps.last or 0.0,
        seconds=(seconds.last or 0.0) if seconds is not None else 0.0,
        waited=(waited.last or 0.0) if waited is not None else 0.0,
    )


def _sizes(series: Sequence[Series]) -> Iterator[tuple[float, float]]:
    """Yield the world size over time, as reported by pods of the latest generation."""
    rounds = {gauge.labels.get(POD, ""): gauge for gauge in select_series(series, Metric.RENDEZVOUS_ROUND)}
    readings: list[tuple[float, float, float]] = []
    for gauge in select_series(series, Metric.WORLD_SIZE):
        number = rounds.get(gauge.labels.get(POD, ""))
        generations = dict(number.known()) if number is not None else {}
        readings += [(moment, generations.get(moment, 0.0), size) for moment, size in gauge.known() if size > 0]
    latest = 0.0
    for moment, generation, size in sorted(readings):
        if generation >= latest:
            latest = generation
            yield moment, size


def _forward_fill(readings: Sequence[tuple[float, float]], timeline: Timeline) -> Values:
    """Return the last value of each interval; an interval without one repeats the value before."""
    values: list[float | None] = [None] * timeline.count
    for moment, value in readings:
        values[timeline.part(moment)] = value
    for index in range(1, timeline.count):
        values[index] = values[index] if values[index] is not None else values[index - 1]
    return tuple(values)


def _scale_changes(sizes: Iterable[tuple[float, float]]) -> Iterator[Change]:
    before = None
    for moment, size in sizes:
        if before is not None and size != before:
            ranks = pluralize(round(size), "rank")
            yield Change(moment, Kind.SCALE, f"{before:.0f} to {ranks}", ranks)
        before = size


def _restarts(series: Sequence[Series]) -> Iterator[Change]:
    """Yield the restarts of the pod with the most, per cause; every pod counts the whole run from its own start."""
    causes: dict[str, dict[str, list[Change]]] = {}
    for counter in select_series(series, Metric.RESTARTS, MetricLabel.CAUSE):
        cause, pod = counter.labels[MetricLabel.CAUSE], counter.labels.get(POD, "")
        causes.setdefault(cause, {}).setdefault(pod, []).extend(_restart_changes(counter, cause))
    for of_pods in causes.values():
        yield from max(of_pods.values(), key=len)


def _restart_changes(series: Series, cause: str) -> Iterator[Change]:
    before = 0.0
    for index, (moment, count) in enumerate(series.known()):
        if count > before and (index or (series.is_complete and moment > series.times[0])):
            is_resize = cause == RestartCause.RESIZE
            yield (
                Change(moment, Kind.SCALE, "resize")
                if is_resize
                else Change(moment, Kind.RESTART, f"restart: {cause}", "restart")
            )
        before = count


def _each_once(numbers: Iterable[int]) -> tuple[int, ...]:
    found: list[int] = []
    for number in numbers:
        if not found or found[-1] != number:
            found.append(number)
    return tuple(found)
