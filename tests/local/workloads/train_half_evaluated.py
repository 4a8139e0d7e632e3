"""The trainer, and a network that fails at the worst moment: rank 1 never gets the evaluation that rank 0 has."""

from __future__ import annotations

import os
import sys

from torch import nn

from ddp_trainer.train.cli import main
from ddp_trainer.train.evaluation.evaluate import Evaluation
from ddp_trainer.train.utils.errors import PeerLost

_whole = Evaluation.run
_evaluations = 0


def half(self: Evaluation, model: nn.Module) -> dict[str, float]:
    """Evaluate; on rank 1 the last message of the first time is lost."""
    global _evaluations  # noqa: PLW0603 - of this process
    _evaluations += 1
    metrics = _whole(self, model)
    if _evaluations == 1 and os.environ["RANK"] == "1":
        raise PeerLost("The result of the evaluation did not arrive.")
    return metrics


if __name__ == "__main__":
    Evaluation.run = half  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
