"""State of every rank of a job and of its worker group, from the metrics of its pods.

Each rank reports its own pod. The index of a pod does not determine its ranks, because every rendezvous reassigns them.

Slow ranks are detected by the rule of the alert DdpStraggler. In data-parallel training, all ranks wait in the
collectives for the slowest one, so the duration of a step is the same on every rank. The time in which a rank is busy
differs. Each rank reports it, so the comparison needs no collective.

Launchers report stalled groups (:func:`find_stalled_group`), and why a running node is in no group
(:func:`find_outside_nodes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from typing import Final

from ddp_trainer.common.constants import GroupState, OutsideReason
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.common.time_classes import Phase
from kubectl_ddp.status.metrics_parser import RANK_STOPPED, Samples
from kubectl_ddp.util.text_table import duration


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
    found: list[RankState] = []
    for pod, of_pod in samples.items():
        earlier = before[pod].split(MetricLabel.RANK) if before and pod in before else {}
        found += [
            _rank(int(name), pod, nodes.get(pod, ""), of_rank, earlier.get(name, _NOTHING))
            for name, of_rank in of_pod.split(MetricLabel.RANK).items()
            if name.isdecimal() and (of_rank.all(Metric.RANK_UP) or of_rank.all(Metric.RANK_INFO))
        ]
    best: dict[int, RankState] = {}
    # A pod keeps the last values of a rank that moved away. The current one is up, or committed a step last.
    for state in sorted(found, key=lambda one: (one.state is not RankActivity.DOWN, one.last_step or 0.0)):
        best[state.rank] = state
    if awaited in best and best[awaited].state is RankActivity.UP:
        best[awaited] = replace(best[awaited], state=RankActivity.AWAITED)
    return tuple(best[rank] for rank in sorted(best))


def _rank(rank: int, pod: str, node: str, samples: Samples, before: Samples) -> RankState:
    """Return the state of a rank from the samples with its label."""
    info = next((labels for labels, _ in samples.all(Metric.RANK_INFO)), {})
    local = info.get(MetricLabel.LOCAL_RANK, "")
    step = samples.value(Metric.STEP)
    phases = _counter_increase(samples, before, Metric.PHASE_SECONDS)
    seconds = sum(phases.values())
    steps = _counter_increase(samples, before, Metric.STEPS).get("", 0.0)
    sampled, busy = (
        _counter_increase(samples, before, name).get("", 0.0) for name in (Metric.SAMPLED_STEPS, Metric.SAMPLED_BUSY)
    )
    computed = _counter_increase(samples, before, Metric.SAMPLES).get("", 0.0)
    return RankState(
        rank=rank,
        local_rank=int(local) if local.isdigit() else None,
        pod=pod,
        node=node,
        state=_activity(samples),
        step=int(step) if step is not None else None,
        samples_per_second=computed / seconds if seconds > 0 and steps > 0 and computed > 0 else None,
        seconds_per_step=seconds / steps if steps > 0 else None,
        busy_seconds=busy / sampled if sampled > 0 else _step_seconds_without_comm(phases, steps),
        phases={phase: value / seconds for phase, value in phases.items() if value > 0} if seconds > 0 else {},
        last_step=samples.value(Metric.LAST_STEP_TIMESTAMP),
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


def _activity(samples: Samples) -> RankActivity:
    if samples.value(Metric.RANK_UP) == 0:
        return RankActivity.DOWN
    return RankActivity.STOPPED if samples.value(RANK_STOPPED) else RankActivity.UP


def _counter_increase(samples: Samples, before: Samples, family: str) -> dict[str, float]:
    """Return the increase of a counter, by phase if it has phases. A counter that decreased has been reset."""
    now = _by_phase(samples, family)
    then = _by_phase(before, family) if before is not _NOTHING else {}
    if not then:
        return now
    if any(now.get(phase, 0.0) < value for phase, value in then.items()):
        then = {}
    return {phase: value - then.get(phase, 0.0) for phase, value in now.items()}


def _by_phase(samples: Samples, family: str) -> dict[str, float]:
    return {labels.get(MetricLabel.PHASE, ""): number for labels, number in samples.all(family)}


RATIO: Final = 1.15
"""Multiple of the median above which a rank is too slow: the alert's threshold."""
FEWEST: Final = 3
"""Minimum number of ranks. With two ranks, the slow one cannot be identified by the median."""


def slowdown_by_rank(ranks: Iterable[RankState]) -> Mapping[int, float]:
    """Return the ratio of each rank's busy time to the median; empty with too few ranks.

    >>> def busy(rank: int, seconds: float) -> RankState:
    ...     return RankState(rank=rank, local_rank=0, pod="p", node="n", state=RankActivity.UP, step=1,
    ...                      samples_per_second=1.0, seconds_per_step=1.0, busy_seconds=seconds)
    >>> slowdown_by_rank([busy(0, 0.2), busy(1, 0.2), busy(2, 0.7)])
    {0: 1.0, 1: 1.0, 2: 3.5}
    >>> slowdown_by_rank([busy(0, 0.2), busy(1, 0.7)])
    {}
    """
    busy = {one.rank: one.busy_seconds for one in ranks if one.busy_seconds and one.state is not RankActivity.DOWN}
    if len(busy) < FEWEST:
        return {}
    middle = median(busy.values())
    return {rank: round(seconds / middle, 9) for rank, seconds in busy.items()}


def stragglers(slow: Mapping[int, float]) -> tuple[int, ...]:
    """Return the ranks that are too slow, the slowest first.

    >>> stragglers({0: 1.0, 1: 1.16, 2: 3.5, 3: 1.15})
    (2, 1)
    """
    return tuple(sorted((rank for rank, ratio in slow.items() if ratio > RATIO), key=lambda rank: -slow[rank]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledGroup:
    """A worker group in which no rank makes progress."""

    seconds: float
    """Time since any rank made progress."""
    rank: int | None = None
    """First rank that the others wait for; None if no single rank is the cause."""


def find_stalled_group(samples: Mapping[str, Samples]) -> StalledGroup | None:
    """Return the stall that all pods of the newest worker group report; None if one of them reports progress.

    Args:
        samples: name of a pod → its samples.
    """
    newest = max((_generation(pod) for pod in samples.values()), default=0.0)
    group = [pod for pod in samples.values() if _generation(pod) == newest]
    seconds, rank = min(
        ((pod.value(Metric.STALLED) or 0.0, pod.value(Metric.STALLED_BY)) for pod in group),
        key=lambda report: report[0],
        default=(0.0, None),
    )
    return (
        StalledGroup(seconds=seconds, rank=int(rank) if rank is not None and rank >= 0 else None) if seconds else None
    )


def is_reported(samples: Mapping[str, Samples]) -> bool:
    """Return whether any pod reports stalls. Launchers of earlier versions do not."""
    return any(pod.value(Metric.STALLED) is not None for pod in samples.values())


def _generation(samples: Samples) -> float:
    return samples.value(Metric.RENDEZVOUS_ROUND) or 0.0


LEAST_SECONDS: Final = 20.0
"""Seconds outside of a group that a start may take."""

_TEXTS: Final[Mapping[str, tuple[str, str, str]]] = {
    OutsideReason.NAME_RESOLUTION: (
        "DNS",
        "the store's name does not resolve",
        "Check the DNS of its node, and that the namespace's NetworkPolicies allow DNS (port 53).",
    ),
    OutsideReason.CONNECTION: (
        "connection",
        "the store's name resolves, and the store does not accept a connection",
        "Check the NetworkPolicies between the pods of the job, and the network of its node.",
    ),
    OutsideReason.HANDSHAKE: (
        "handshake",
        "the server at the store's address is not the store of this run",
        "Another program answers there: see that the Service of the store selects the store's pod alone.",
    ),
    OutsideReason.SECRET: (
        "secret",
        "the store has another secret",
        "Delete the pod: its replacement mounts the Secret of the run.",
    ),
    OutsideReason.NAME_TAKEN: (
        "name taken",
        "another connection holds its name",
        "The store admits it once the other connection is lost; its log names the other node.",
    ),
    OutsideReason.PREFLIGHT: ("preflight", "its preflight fails", "Its log has the result of the preflight."),
    OutsideReason.WAITING: ("waiting", "it waits for a place in the group", ""),
}
"""Reason → one word for a column, the end of a sentence, and a fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideNode:
    """A node that runs and is in no worker group."""

    pod: str
    reason: str
    """Member of :class:`~ddp_trainer.common.constants.OutsideReason`."""
    since: float
    """Unix time since which it is in no group."""

    @property
    def is_fault(self) -> bool:
        """True unless the node only waits for a place in the group."""
        return self.reason != OutsideReason.WAITING

    @property
    def short_reason(self) -> str:
        """The reason in one or two words."""
        return _TEXTS[self.reason][0]

    @property
    def reason_text(self) -> str:
        """The reason as the end of a sentence."""
        return _TEXTS[self.reason][1]

    @property
    def fix(self) -> str:
        """What helps, in one sentence."""
        return _TEXTS[self.reason][2]

    def describe(self, now: float) -> str:
        """Return node, time and reason, without a full stop."""
        return f"{self.pod} for {duration(max(0.0, now - self.since))}: {self.reason_text}"


def late_nodes(nodes: Iterable[OutsideNode], now: float) -> list[OutsideNode]:
    """Return the nodes that are outside of the group for longer than a start takes."""
    return [node for node in nodes if now - node.since > LEAST_SECONDS]


def find_outside_nodes(samples: Mapping[str, Samples], states: Mapping[str, str]) -> tuple[OutsideNode, ...]:
    """Return the nodes in no group. While there is no group, a node that only waits for one is not among them.

    Args:
        samples: Name of a pod → its metrics.
        states: Name of a pod → state of its worker group.
    """
    has_group = not {GroupState.RUNNING, GroupState.SUCCEEDED}.isdisjoint(states.values())
    return tuple(
        OutsideNode(pod=pod, reason=reason, since=since)
        for pod, of_pod in sorted(samples.items())
        if states[pod] in {GroupState.PENDING, GroupState.RENDEZVOUS}
        for reason, since in of_pod.by(MetricLabel.REASON, Metric.OUTSIDE_SINCE).items()
        if since and reason in _TEXTS and (has_group or reason != OutsideReason.WAITING)
    )
