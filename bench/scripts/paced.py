"""The task digits with about the pause of the plain script in each step, which leaves processors to pods that start.

A shell expands this text, so it has no backtick and no dollar sign.
"""

import time
from typing import Any

from ddp_workloads.digits import Digits

PAUSE = 0.02 / 32
"""Seconds for each sample of a rank, of which a step of two ranks has 32."""


class PacedDigits(Digits):
    """The digits, slowly."""

    def losses(self, model: Any, batch: Any) -> Any:
        """Return the losses, later."""
        time.sleep(PAUSE * len(batch[0]))
        return super().losses(model, batch)
