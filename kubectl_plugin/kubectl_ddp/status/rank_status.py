"""State of every rank of a job, from the metrics of its pods.

Each rank reports its own pod. The index of a pod does not determine its ranks, because every rendezvous reassigns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.status.metrics_parser import RANK_STOPPED, Samples


class RankActivity(StrEnum):
    """State of a rank's process."""

    UP = "up"
    STOPPED = "stopped"
    """The process exists and does not run: a debugger, SIGSTOP, or uninterruptible sleep."""
    AWAITED = "waited for"
    """The other ranks wait for this rank, and none makes progress."""
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """State of one rank."""

    rank: int
    local_rank: int | None
    pod: str
    node: str
    """Kubernetes node of the pod."""
    state: RankActivity
    step: int | None
    """Last committed global step."""
    samples_per_second: float | None
    """Average over the time in steps: since the rank started, or since the earlier scrape."""
    seconds_per_step: float | None
    busy_seconds: float | None = None
    """Seconds per step without waiting for other ranks; None if the two are not measured separately."""
    phases: dict[str, float] = field(default_factory=dict)
    """Phase of a step → its share of the time, 0 to 1."""
    last_step: float | None = None
    """Unix time of the last committed step."""
    place: str = ""
    """Position in the layout of the job, as ``r1 s0 t1``; empty if the job has no layout."""


_NOTHING: Final = Samples()
"""Samples of a rank that the earlier scrape does not have."""


def rank_states(
    samples: Mapping[str, Samples],
    nodes: Mapping[str, str],
    before: Mapping[str, Samples] | None = None,
    *,
    awaited: int | None = None,
) -> tuple[RankState, ...]:
    """Return the state of every rank that a pod reports, ordered by rank.

    Args:
        samples: Pod → its samples.
        nodes: Pod → its Kubernetes node.
        before: Samples of an earlier scrape. With it, rates are averages over the time between the scrapes.
        awaited: Rank that the others wait for.
    """
    told: list[RankState] = []
    for pod, said in samples.items():
        earlier = before[pod].split(MetricLabel.RANK) if before and pod in before else {}
        told += [
            _rank(int(name), pod, nodes.get(pod, ""), of_rank, earlier.get(name, _NOTHING))
            for name, of_rank in said.split(MetricLabel.RANK).items()
            if name.isdecimal() and (of_rank.all(Metric.RANK_UP) or of_rank.all(Metric.RANK_INFO))
        ]
    best: dict[int, RankState] = {}
    # A pod keeps the last values of a rank that moved away. The current one is up, or committed a step last.
    for state in sorted(told, key=lambda one: (one.state is not RankActivity.DOWN, one.last_step or 0.0)):
        best[state.rank] = state
    if awaited in best and best[awaited].state is RankActivity.UP:
        best[awaited] = replace(best[awaited], state=RankActivity.AWAITED)
    return tuple(best[rank] for rank in sorted(best))


def _rank(rank: int, pod: str, node: str, said: Samples, before: Samples) -> RankState:
    """Return the state of a rank from the samples with its label."""
    info = next((labels for labels, _ in said.all(Metric.RANK_INFO)), {})
    local = info.get(MetricLabel.LOCAL_RANK, "")
    step = said.value(Metric.STEP)
    phases = _counter_increase(said, before, Metric.PHASE_SECONDS)
    seconds = sum(phases.values())
    steps = _counter_increase(said, before, Metric.STEPS).get("", 0.0)
    sampled, busy = (
        _counter_increase(said, before, each).get("", 0.0) for each in (Metric.SAMPLED_STEPS, Metric.SAMPLED_BUSY)
    )
    computed = _counter_increase(said, before, Metric.SAMPLES).get("", 0.0)
    return RankState(
        rank=rank,
        local_rank=int(local) if local.isdigit() else None,
        pod=pod,
        node=node,
        state=_activity(said),
        step=int(step) if step is not None else None,
        samples_per_second=computed / seconds if seconds > 0 and steps > 0 and computed > 0 else None,
        seconds_per_step=seconds / steps if steps > 0 else None,
        busy_seconds=busy / sampled if sampled > 0 else _step_seconds_without_comm(phases, steps),
        phases={phase: value / seconds for phase, value in phases.items() if value > 0} if seconds > 0 else {},
        last_step=said.value(Metric.LAST_STEP_TIMESTAMP),
        place=_place(info) if info else "",
    )


def _place(info: Mapping[str, str]) -> str:
    """Return the position in the layout from the labels of ``RANK_INFO``."""
    from ddp_trainer.common.parallel_dims import DIMENSION_NAMES  # noqa: PLC0415 - a list of jobs does not need it

    return " ".join(f"{label[0]}{info[label]}" for label in DIMENSION_NAMES if info.get(label))


def _step_seconds_without_comm(phases: Mapping[str, float], steps: float) -> float | None:
    """Return the seconds of a step without communication, for a loop that times its own communication."""
    waited = phases.get(Phase.COMM_EXPOSED, 0.0)
    return (sum(phases.values()) - waited) / steps if steps > 0 and waited > 0 else None


def _activity(said: Samples) -> RankActivity:
    if said.value(Metric.RANK_UP) == 0:
        return RankActivity.DOWN
    return RankActivity.STOPPED if said.value(RANK_STOPPED) else RankActivity.UP


def _counter_increase(said: Samples, before: Samples, family: str) -> dict[str, float]:
    """Return the increase of a counter, by phase if it has phases. A counter that decreased has been reset."""
    now = _by_phase(said, family)
    then = _by_phase(before, family) if before is not _NOTHING else {}
    if not then:
        return now
    if any(now.get(phase, 0.0) < value for phase, value in then.items()):
        then = {}
    return {phase: value - then.get(phase, 0.0) for phase, value in now.items()}


def _by_phase(said: Samples, family: str) -> dict[str, float]:
    return {labels.get(MetricLabel.PHASE, ""): number for labels, number in said.all(family)}
