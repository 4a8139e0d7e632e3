"""Recent history of a job: samples for rates, and one value per frame for sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import Samples
from kubectl_ddp.status.rank_status import RankState, rank_states
from kubectl_ddp.status.stragglers import slowdown_by_rank

RATE_SECONDS: Final = 5.0
"""Window of rates, in seconds."""
JUDGED_SECONDS: Final = 60.0
"""Maximum window for straggler detection, in seconds; single steps vary too much."""
KEPT: Final = 512
"""Number of values kept for sparklines; no terminal is wider."""

Told = Mapping[str, Samples]


class RateWindow:
    """Collects every frame and computes rates."""

    def __init__(self) -> None:
        self.throughput: deque[float | None] = deque(maxlen=KEPT)
        self.step_seconds: deque[float | None] = deque(maxlen=KEPT)
        self.loss: deque[float | None] = deque(maxlen=KEPT)
        self._recent: deque[tuple[float, Told]] = deque()
        self._sparse: deque[tuple[float, Told]] = deque()

    def frame(self, snapshot: Snapshot, samples: Told, where: str, now: float) -> tuple[JobState, Mapping[int, float]]:
        """Add a frame and return the job's state with recent rates, and the slowdown of each rank.

        Args:
            snapshot: Job and its pods.
            samples: Metric samples by pod.
            where: Place where the job runs.
            now: Time of a monotonic clock, in seconds.
        """
        _discard_before(self._recent, now - RATE_SECONDS)
        _discard_before(self._sparse, now - JUDGED_SECONDS)
        state = job_state(snapshot, samples, where=where, before=self._recent[0][1] if self._recent else None)
        slow = slowdown_by_rank(self._long_window_states(samples) if self._sparse else state.ranks)
        self._recent.append((now, samples))
        if not self._sparse or now - self._sparse[-1][0] >= RATE_SECONDS:
            self._sparse.append((now, samples))
        self.throughput.append(state.throughput)
        self.step_seconds.append(step_seconds(state.ranks))
        if self.loss or state.loss is not None:  # the curve begins with the first loss, not with the startup
            self.loss.append(state.loss)
        return state, slow

    def _long_window_states(self, samples: Told) -> tuple[RankState, ...]:
        return rank_states(samples, {}, self._sparse[0][1])


def step_seconds(ranks: tuple[RankState, ...]) -> float | None:
    """Return the mean step time over the ranks; they wait for one another."""
    told = [one.seconds_per_step for one in ranks if one.seconds_per_step is not None]
    return sum(told) / len(told) if told else None


def _discard_before(frames: deque[tuple[float, Told]], since: float) -> None:
    """Keep the newest frame that is at least as old as ``since``, and all later ones."""
    while len(frames) > 1 and frames[1][0] <= since:
        frames.popleft()
