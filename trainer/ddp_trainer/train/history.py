"""What a run has gone through, over all its processes: steps lost, time that was productive, and when it began.

Steps lost and the first start stand in the odometer, which outlives a crash; productive time, and once more the first
start, in every checkpoint: only time in steps that survived was productive.
"""

from __future__ import annotations

import time
from typing import TypedDict

from ddp_trainer.recorder import RankRecorder, SilentRankRecorder
from ddp_trainer.train.exchange import agreed
from ddp_trainer.train.group import Group
from ddp_trainer.train.odometer import Odometer, Reading
from ddp_trainer.train.phases import Phases


class HistoryState(TypedDict):
    """What a checkpoint holds of it."""

    productive: float
    first_start: float


class History:
    """The account that processes of one run hand on to each other."""

    def __init__(self, phases: Phases) -> None:
        self._odometer: Odometer | None = None
        self._phases = phases
        self._recorder: RankRecorder = SilentRankRecorder()
        self._reading = Reading()
        self._productive_before = 0.0

    def recall(self, odometer: Odometer | None, recorder: RankRecorder, group: Group, began: float) -> None:
        """What this process and earlier ones went through, as far as any rank knows; every rank must call it.

        ``odometer`` is None on a rank that writes none in this group; ``began`` is when a run begins that has no
        earlier process, in seconds since the Unix epoch.
        """
        if self._odometer is not None:
            self._odometer.close()
        self._odometer, self._recorder = odometer, recorder
        own = self._reading if odometer is None else self._reading.merged(odometer.read())
        self._reading = agreed(own, group, began)

    def go_on_from(self, step: int) -> int:
        """Training goes on after so many steps: those that were ever committed beyond are lost; how many these are."""
        lost = max(0, self._reading.highest_step - step)
        if lost:
            self._recorder.lost_steps(lost)
        self._reading = Reading(step, self._reading.lost_steps + lost, self._reading.first_start)
        self.reached(step)
        return lost

    def reached(self, step: int) -> None:
        """So many steps are committed now."""
        self._reading.highest_step = max(self._reading.highest_step, step)
        if self._odometer is not None:
            self._odometer.write(self._reading)

    @property
    def lost_steps(self) -> int:
        """Committed steps that had to be done again, over all restarts and rollbacks."""
        return self._reading.lost_steps

    @property
    def productive(self) -> float:
        """Seconds in steps that survived, without those for checkpoints."""
        return self._productive_before + self._phases.productive

    @property
    def seconds(self) -> float:
        """Since the run first started; never 0."""
        return max(time.time() - self._reading.first_start, 1e-9)

    def state_dict(self) -> HistoryState:
        """Plain values only."""
        return {"productive": self.productive, "first_start": self._reading.first_start}

    def load_state_dict(self, state: HistoryState) -> None:
        """Go on from a stored account; what this process was busy with so far did not survive."""
        self._productive_before, self._phases.productive = state["productive"], 0.0
        self._reading.first_start = min(self._reading.first_start, state["first_start"])
