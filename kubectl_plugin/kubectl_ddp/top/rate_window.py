"""How a job got where it is: the last frames of samples for rates, and a number of each frame for sparklines."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from kubectl_ddp.backend import Snapshot
from kubectl_ddp.exposition import Samples
from kubectl_ddp.ranks import RankState, rank_states
from kubectl_ddp.state import JobState, job_state
from kubectl_ddp.stragglers import slowdown_by_rank

RATE_SECONDS: Final = 5.0
"""Rates are over so much time."""
JUDGED_SECONDS: Final = 60.0
"""Stragglers are judged over up to so much: a single step trembles."""
KEPT: Final = 512
"""Numbers for sparklines: no terminal shows more."""

Told = Mapping[str, Samples]


class RateWindow:
    """Told of every frame."""

    def __init__(self) -> None:
        self.throughput: deque[float | None] = deque(maxlen=KEPT)
        self.step_seconds: deque[float | None] = deque(maxlen=KEPT)
        self._recent: deque[tuple[float, Told]] = deque()
        self._sparse: deque[tuple[float, Told]] = deque()

    def frame(self, snapshot: Snapshot, samples: Told, where: str, now: float) -> tuple[JobState, Mapping[int, float]]:
        """The job now, with rates over the last seconds, and how slow each rank is.

        Args:
            snapshot: the job and its pods.
            samples: what the pods say.
            where: the place it runs at.
            now: of a clock that only grows.
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
        return state, slow

    def _long_window_states(self, samples: Told) -> tuple[RankState, ...]:
        return rank_states(samples, {}, self._sparse[0][1])


def step_seconds(ranks: tuple[RankState, ...]) -> float | None:
    """Mean time of a step over the ranks, which wait for one another."""
    told = [one.seconds_per_step for one in ranks if one.seconds_per_step is not None]
    return sum(told) / len(told) if told else None


def _discard_before(frames: deque[tuple[float, Told]], since: float) -> None:
    """Keep the newest that is as old as that, and what came after."""
    while len(frames) > 1 and frames[1][0] <= since:
        frames.popleft()
