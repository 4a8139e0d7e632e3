"""Guard against a loss or gradient that is not finite: all ranks together stop, skip the step, or roll back.

After the vote every rank has the same information whether any loss or gradient was infinite or not a number. All ranks
therefore decide alike, and finite steps cost only a sum on the device. A skipped step *is* committed: its samples are
consumed, and neither weights nor running statistics change. With fp16, overflowing gradients are part of the search for
the loss scale. Such steps are skipped whatever the flags are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypedDict

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import OnNonfinite
from ddp_trainer.train.optim.optimizer import LossScale
from ddp_trainer.train.utils.errors import NonFiniteLoss


class RollBack(Exception):
    """Raised when all ranks must resume from the last good checkpoint; the message is the reason."""


class GuardState(TypedDict):
    """State of the guard in a checkpoint: numbers of skipped steps and of rollbacks."""

    skipped: int
    rollbacks: int


class Guard:
    """Policy for steps with a loss or gradient that is not finite, and their counts."""

    def __init__(self, config: Config, note: Callable[[str], None]) -> None:
        self._policy = config.on_nonfinite
        self._limit = config.nonfinite_limit
        self._note = note
        self._in_a_row = 0
        self._latest = 0
        """Last step that was not finite; a finite one after it ends the row."""
        self.skipped = 0
        """Surviving steps that consumed their samples without changing weights."""
        self.rollbacks = 0
        """Number of rollbacks to a checkpoint."""

    def handle_nonfinite(self, step: int, loss: float, scale: LossScale | None) -> None:
        """Decide about a step whose loss or gradient is not finite; return normally if the step is skipped.

        Args:
            step: Number of the global step.
            loss: Loss of the step over all ranks.
            scale: Loss scale of fp16, which is lowered if it caused the overflow; None without one.

        Raises:
            RollBack: The run must roll back to its last checkpoint.
            NonFiniteLoss: The run must stop.
        """
        what = f"A gradient of step {step} is infinite or not a number."
        if not math.isfinite(loss):
            what = f"The loss of step {step} is {loss}."
        if step > self._latest + 1:
            self._in_a_row = 0
        self._latest = step
        if math.isfinite(loss) and scale is not None and scale.back_off():
            self.skipped += 1
            self._note(f"{what} It was skipped: the loss scale is now {scale.value:g}.")
        elif self._policy is OnNonfinite.SKIP and self._in_a_row < self._limit:
            self.skipped += 1
            self._in_a_row += 1
            self._note(f"{what} Its samples are consumed and the weights stay: {self.skipped} skipped so far.")
        elif self._policy is OnNonfinite.ROLLBACK and self.rollbacks < self._limit:
            self.rollbacks += 1
            raise RollBack(what)
        else:
            raise NonFiniteLoss(what, hint=self._fix_hint())

    def _fix_hint(self) -> str:
        advice = "Lower the learning rate, warm up for longer or clip gradients, and start from the last checkpoint."
        if self._policy is OnNonfinite.SKIP:
            return f"{self._in_a_row} steps before it were skipped in a row (--nonfinite-limit). {advice}"
        if self._policy is OnNonfinite.ROLLBACK:
            return f"The run was rolled back {self.rollbacks} times already (--nonfinite-limit). {advice}"
        return advice

    def state_dict(self) -> GuardState:
        """Return the counts for a checkpoint."""
        return {"skipped": self.skipped, "rollbacks": self.rollbacks}

    def load_state_dict(self, state: GuardState | None) -> None:
        """Restore the counts; None is the state of a checkpoint from versions without guards."""
        self.skipped = 0 if state is None else state["skipped"]
        # A rollback loads counts from before it happened, so its own count must not decrease.
        self.rollbacks = max(self.rollbacks, 0 if state is None else state["rollbacks"])
        self._in_a_row = self._latest = 0
