"""What every rank of a job is doing, from the metrics of its pods.

Which pod a rank is on is what the rank itself says; a pod's index says nothing about it, since ranks are given at every
rendezvous anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ddp_trainer.contract import Metric, MetricLabel
from kubectl_ddp.exposition import RANK_STOPPED, Samples


class RankActivity(StrEnum):
    """What the process of a rank is doing."""

    UP = "up"
    STOPPED = "stopped"
    """It exists and does not run: a debugger, SIGSTOP, or uninterruptible sleep."""
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank."""

    rank: int
    local_rank: int | None
    pod: str
    node: str
    """Kubernetes node of the pod."""
    state: RankActivity
    step: int | None
    """Global step it committed last."""
    samples_per_second: float | None
    """Over the time in steps: since it started, or since the earlier scrape."""
    seconds_per_step: float | None
    phases: dict[str, float] = field(default_factory=dict)
    """Part of a step → share of its time, 0 to 1."""
    last_step: float | None = None
    """Unix time of its last committed step."""


def rank_states(
    samples: Mapping[str, Samples], nodes: Mapping[str, str], before: Mapping[str, Samples] | None = None
) -> tuple[RankState, ...]:
    """Every rank that a pod tells of, in order.

    Args:
        samples: pod → what it said.
        nodes: pod → the node it is on.
        before: the same from an earlier scrape; rates are then over the time between.
    """
    told = [
        _rank(rank, pod, nodes.get(pod, ""), said, (before or {}).get(pod))
        for pod, said in samples.items()
        for rank in _ranks(said)
    ]
    best: dict[int, RankState] = {}
    # A pod keeps the last values of a rank that has moved away: the one that lives, or stepped last, is the rank.
    for state in sorted(told, key=lambda one: (one.state is not RankActivity.DOWN, one.last_step or 0.0)):
        best[state.rank] = state
    return tuple(best[rank] for rank in sorted(best))


def _ranks(samples: Samples) -> Iterable[int]:
    families = (Metric.RANK_UP, Metric.RANK_INFO)
    words = {labels.get(MetricLabel.RANK, "") for family in families for labels, _ in samples.all(family)}
    return sorted(int(word) for word in words if word.isdigit())


def _rank(rank: int, pod: str, node: str, samples: Samples, before: Samples | None) -> RankState:
    name = str(rank)
    info = next((labels for labels, _ in samples.all(Metric.RANK_INFO) if labels.get(MetricLabel.RANK) == name), {})
    local = info.get(MetricLabel.LOCAL_RANK, "")
    step = samples.value(Metric.STEP, rank=name)
    phases = _grown(samples, before, name, Metric.PHASE_SECONDS)
    seconds = sum(phases.values())
    steps = _grown(samples, before, name, Metric.STEPS).get("", 0.0)
    computed = _grown(samples, before, name, Metric.SAMPLES).get("", 0.0)
    return RankState(
        rank=rank,
        local_rank=int(local) if local.isdigit() else None,
        pod=pod,
        node=node,
        state=_activity(samples, name),
        step=int(step) if step is not None else None,
        samples_per_second=computed / seconds if seconds > 0 and steps > 0 else None,
        seconds_per_step=seconds / steps if steps > 0 else None,
        phases={phase: value / seconds for phase, value in phases.items() if value > 0} if seconds > 0 else {},
        last_step=samples.value(Metric.LAST_STEP_TIMESTAMP, rank=name),
    )


def _activity(samples: Samples, rank: str) -> RankActivity:
    if samples.value(Metric.RANK_UP, rank=rank) == 0:
        return RankActivity.DOWN
    return RankActivity.STOPPED if samples.value(RANK_STOPPED, rank=rank) else RankActivity.UP


def _grown(samples: Samples, before: Samples | None, rank: str, family: str) -> dict[str, float]:
    """What a counter grew by, by phase where it has phases; one that fell was begun anew."""
    now = _by_phase(samples, rank, family)
    then = _by_phase(before, rank, family) if before is not None else {}
    if any(now.get(phase, 0.0) < value for phase, value in then.items()):
        then = {}
    return {phase: value - then.get(phase, 0.0) for phase, value in now.items()}


def _by_phase(samples: Samples, rank: str, family: str) -> dict[str, float]:
    return {
        labels.get(MetricLabel.PHASE, ""): number
        for labels, number in samples.all(family)
        if labels.get(MetricLabel.RANK) == rank
    }
