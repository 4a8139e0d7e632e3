"""Guards against a loss or gradient that is not finite: all ranks stop, skip the step, or go back, together.

The vote tells every rank whether any rank's loss or gradient was infinite or not a number, so all decide alike, and
steps that are fine pay nothing but a sum on the device. A skipped step *is* committed: its samples are consumed,
and neither weights nor running statistics move. With fp16, gradients that overflow belong to the search for the
loss scale; such steps are skipped whatever the flags say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypedDict

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.options import OnNonFinite
from ddp_trainer.train.loop.step_consensus import StepDecision
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.utils.errors import NotFinite


class RollBack(Exception):
    """All ranks are to go on from the last good checkpoint; the message says why."""


class GuardState(TypedDict):
    """What a checkpoint holds."""

    skipped: int
    rollbacks: int


class Guard:
    """Decides about steps that must not move the weights, and counts them."""

    def __init__(self, config: Config, note: Callable[[str], None]) -> None:
        self._policy = config.on_nonfinite
        self._limit = config.nonfinite_limit
        self._note = note
        self._in_a_row = 0
        self.skipped = 0
        """Steps of the surviving history that consumed their samples and moved no weight."""
        self.rollbacks = 0
        """Times that the run went back to a checkpoint."""

    def passed(self) -> None:
        """A step moved the weights."""
        self._in_a_row = 0

    def refuse(self, step: int, verdict: StepDecision, optimization: OptimizerWrapper) -> None:
        """Decide about a step whose loss or gradient is not finite; returns where it is to be skipped.

        Raises:
            RollBack: the run is to go back to its last checkpoint.
            NotFinite: the run is to stop.
        """
        what = _what(step, verdict)
        if math.isfinite(verdict.loss) and optimization.back_off():
            self.skipped += 1
            self._note(f"{what} It was skipped: the loss scale is now {optimization.loss_scale:g}.")
        elif self._policy is OnNonFinite.SKIP and self._in_a_row < self._limit:
            self.skipped += 1
            self._in_a_row += 1
            self._note(f"{what} Its samples are consumed and the weights stay: {self.skipped} skipped so far.")
        elif self._policy is OnNonFinite.ROLLBACK and self.rollbacks < self._limit:
            self.rollbacks += 1
            raise RollBack(what)
        else:
            raise NotFinite(what, hint=self._way_out())

    def _way_out(self) -> str:
        advice = "Lower --learning-rate, raise --warmup-steps or set --clip-norm, and start from the last checkpoint."
        if self._policy is OnNonFinite.SKIP:
            return f"{self._in_a_row} steps before it were skipped in a row (--nonfinite-limit). {advice}"
        if self._policy is OnNonFinite.ROLLBACK:
            return f"The run was rolled back {self.rollbacks} times already (--nonfinite-limit). {advice}"
        return advice

    def state_dict(self) -> GuardState:
        """Numbers only."""
        return {"skipped": self.skipped, "rollbacks": self.rollbacks}

    def load_state_dict(self, state: GuardState | None) -> None:
        """Go on from a stored account; None from a checkpoint that is older than guards."""
        self.skipped = 0 if state is None else state["skipped"]
        # A rollback loads what was stored before it happened.
        self.rollbacks = max(self.rollbacks, 0 if state is None else state["rollbacks"])
        self._in_a_row = 0


def _what(step: int, verdict: StepDecision) -> str:
    if not math.isfinite(verdict.loss):
        return f"The loss of step {step} is {verdict.loss}."
    return f"A gradient of step {step} is infinite or not a number."
