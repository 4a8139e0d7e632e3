"""One rank of ``bench sharding``: the unchanged trainer, which logs the size of its state after every step.

``DDP_BENCH_STATE`` names the directory to write to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from torch import Tensor

from ddp_trainer.train.cli import main
from ddp_trainer.train.optim.optimizer import OptimizerWrapper


def observe(directory: Path) -> None:
    """Write the most bytes of weights, gradients and moments that this rank has held between two steps."""
    step = OptimizerWrapper.step
    most = 0

    def patched_step(self: OptimizerWrapper, number: int) -> None:
        nonlocal most
        step(self, number)
        if (taken := state_bytes(self)) > most:
            most = taken
            (directory / os.environ["RANK"]).write_text(str(most))

    OptimizerWrapper.step = patched_step  # type: ignore[method-assign] # of this process alone


def state_bytes(optimization: OptimizerWrapper) -> int:
    """Return the bytes of the state on this rank."""
    from ddp_trainer.train.mesh.sharded_state import local_shard

    optimizer = optimization.optimizer
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(local_shard(tensor).nbytes for tensor in (*weights, *gradients, *states))


if __name__ == "__main__":
    observe(Path(os.environ["DDP_BENCH_STATE"]))
    sys.exit(main(sys.argv[1:]))
