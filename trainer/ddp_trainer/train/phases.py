"""Where the time of a step goes: a stopwatch that never stops, so that the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Callable

from ddp_trainer.contract import Phase
from ddp_trainer.recorder import RankRecorder


class Phases:
    """Seconds per phase since the last step was reported."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()
        self._seconds = dict.fromkeys(Phase, 0.0)
        self.productive = 0.0
        """Seconds of all steps reported so far, without those for checkpoints."""

    def lap(self, phase: Phase) -> None:
        """The time since the last lap belongs to ``phase``."""
        now = self._clock()
        self._seconds[phase] += now - self._last
        self._last = now

    def spent(self, *phases: Phase) -> float:
        """Seconds of these phases in the step under way, up to the last lap."""
        return sum(self._seconds[phase] for phase in phases)

    def restart(self) -> None:
        """Training begins now: what was before belongs to no step."""
        self._last = self._clock()

    def report(self, recorder: RankRecorder, *, step: int, epoch: int, samples: int) -> float:
        """The step was committed: hand its phases on and begin the next; seconds of the step."""
        self.lap(Phase.OTHER)
        spent = self._seconds
        recorder.step(
            step,
            epoch,
            samples,
            spent[Phase.DATA_WAIT],
            spent[Phase.HOST_TO_DEVICE],
            spent[Phase.FORWARD],
            spent[Phase.BACKWARD],
            spent[Phase.COMM_EXPOSED],
            spent[Phase.OPTIMIZER],
            spent[Phase.CHECKPOINT],
            spent[Phase.OTHER],
        )
        total = sum(spent.values())
        self.productive += total - spent[Phase.CHECKPOINT]
        self._seconds = dict.fromkeys(Phase, 0.0)
        return total
