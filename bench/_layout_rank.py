"""One rank of a layout for ``bench plan``: the trainer as it is, and the most that tensors took in its first steps.

``DDP_BENCH_BYTES`` names the directory to write to, ``DDP_BENCH_STEPS`` how many steps are looked at. What lives before
them are the weights of this rank: a model that was not cut yet does not count.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from torch import nn

from bench._live_bytes import Watched
from ddp_trainer.train.cli import main
from ddp_trainer.train.step import Stepper


def observe(directory: Path, steps: int) -> None:
    """Write down the bytes when so many steps are done."""
    take = Stepper.take
    watched: list[Watched] = []

    def observed(self: Stepper, *args: Any, **options: Any) -> Any:
        if not watched:
            watched.append(Watched())
        verdict = take(self, *args, **options)
        observed.left -= 1  # type: ignore[attr-defined] # a count of this process's
        if not observed.left:  # type: ignore[attr-defined] # as above
            taken = watched[0].peak() + weight_bytes(self._strategy.model)
            (directory / os.environ["RANK"]).write_text(str(taken))
        return verdict

    observed.left = steps  # type: ignore[attr-defined] # as above
    Stepper.take = observed  # type: ignore[method-assign] # of this process alone


def weight_bytes(model: nn.Module) -> int:
    """Of those that this rank holds."""
    from ddp_trainer.train.spread import state_bytes

    return state_bytes(*(weight.detach() for weight in model.parameters() if not weight.is_meta))


if __name__ == "__main__":
    observe(Path(os.environ["DDP_BENCH_BYTES"]), int(os.environ["DDP_BENCH_STEPS"]))
    sys.exit(main(sys.argv[1:]))
