"""The task digits with the pause of the plain script in each step, which leaves processors to pods that start.

A shell expands this text, so it has no backtick and no dollar sign.
"""

import time
from typing import Any

from ddp_trainer.train.tasks.digits import Digits

PAUSE = 0.02


class PacedDigits(Digits):
    """The digits, slowly."""

    def losses(self, model: Any, batch: Any) -> Any:
        """Return the losses, later."""
        time.sleep(PAUSE)
        return super().losses(model, batch)
