"""Last state in which the pods of a running job reported their progress."""

from __future__ import annotations

from dataclasses import replace

from kubectl_ddp.status.job_state import JobState, State


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
