"""Remaining time of a job from the steps that it commits, and its last progress while its pods do not answer.

Steps are counted against the clock, so evaluations, checkpoints and waiting for data are part of the estimate.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from kubectl_ddp.status.job_state import JobState, State

WINDOW_SECONDS: Final = 60.0
"""Length of the time over which steps are counted."""
LEAST_SECONDS: Final = 5.0
"""Minimum length of that time. Before, the step time that the ranks report is used."""


class StepRate:
    """Rate of committed steps over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._group: int | None = None
        self._eta: float | None = None

    def eta_seconds(self, state: JobState, now: float) -> float | None:
        """Return the remaining seconds; None if steps or their planned number are unknown.

        The estimate changes only with the step.

        Args:
            state: Current state of the job.
            now: Time of a monotonic clock, in seconds.
        """
        if state.step is None or not state.steps_planned:
            return None
        if self._group != state.generation or (self._seen and state.step < self._seen[-1][1]):
            self._seen.clear()  # another group has another pace, and may repeat steps
        self._group = state.generation
        if self._seen and state.step == self._seen[-1][1]:
            return self._eta
        self._seen.append((now, state.step))
        while len(self._seen) > 1 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        self._eta = self._estimate(state, state.steps_planned - state.step)
        return self._eta

    def _estimate(self, state: JobState, left: int) -> float | None:
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        if last - first < LEAST_SECONDS:
            return state.eta_seconds
        return max(0, left) * (last - first) / (high - low)


class LastProgress:
    """Fills gaps in the metrics of a running job: pods that end stop answering before the job has ended."""

    def __init__(self) -> None:
        self._last: JobState | None = None

    def fill(self, state: JobState) -> JobState:
        """Return the state, or the last one with its progress if this one has less; its nodes are the current ones."""
        if state.state is not State.RUNNING:
            self._last = None
        elif self._last is not None and _known(state) < _known(self._last):
            return replace(self._last, nodes=state.nodes)
        else:
            self._last = state
        return state


def _known(state: JobState) -> int:
    """Return how many values of the progress are known."""
    return sum(value is not None for value in (state.world_size, state.step, state.steps_planned))
