"""The trainer, and a network that fails at the worst moment: rank 1 never hears that a step counts which others took.

Its task is slow until the file ``$HURRY`` exists, and logs each time a weight of its model is made.
"""

from __future__ import annotations

import os
import sys

from torch import Tensor, nn

from ddp_trainer.train import step as train_step
from ddp_trainer.train.cli import main
from ddp_trainer.train.data.task import rowwise
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.step import StepDecision, StepReport
from ddp_trainer.train.utils.errors import PeerLost
from tests.local.workloads import train_made
from tests.local.workloads.train_layouts import Numbers, Rows
from tests.local.workloads.train_reformed import dawdle

UNHEARD = 4
"""Votes of a process whose verdict reaches every rank."""

_whole = train_step.decide_step
_votes = 0


def half(ballot: StepReport, group: Group) -> StepDecision:
    """Vote; on rank 1 of the first group, the verdict of one vote does not arrive."""
    global _votes  # noqa: PLW0603 - of this process
    _votes += 1
    decision = _whole(ballot, group)
    if _votes == UNHEARD + 1 and os.environ["RANK"] == "1" and os.environ.get("DDP_GENERATION") == "1":
        raise PeerLost("The verdict did not arrive.")
    return decision


class SlowRows(Rows):
    """Read slowly."""

    @rowwise
    def batch(self, ids: Tensor) -> Tensor:
        """Int64 ``(n, window + 1)``."""
        dawdle()
        return super().batch(ids)


class SlowNumbers(Numbers):
    """As :class:`Numbers`."""

    def train_samples(self) -> Rows:
        """Those to learn."""
        return SlowRows(self.rows, vocabulary=self.vocabulary, window=self.window)

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        """One of the weights is counted."""
        super().init_weight(model, name, weight)
        if name == "blocks.0.mlp.hidden.weight":
            train_made.count()


if __name__ == "__main__":
    train_step.decide_step = half
    sys.exit(main(sys.argv[1:]))
