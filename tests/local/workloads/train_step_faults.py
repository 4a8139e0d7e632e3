"""The trainer, one rank of which ends at chosen points of a step, once for each point, whenever it has trained a while.

The rank of local rank ``VICTIM`` comes to all :data:`POINTS`; the file ``done`` in ``FOLDER`` has a line for each that
came, and ``pids-N`` one for each process that was local rank N.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ddp_trainer.train.cli import main
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop import train_step
from ddp_trainer.train.loop.step_consensus import StepDecision, StepReport

POINTS: Final = ("forward", "first bucket", "last bucket", "vote", "optimizer")
VOTES_BEFORE: Final = 3
"""Steps of the whole group before the next fault, as many as are compared after one."""

_decide = train_step.decide_step


class Faults:
    """Counts the votes of this process, and ends it when a point comes."""

    def __init__(self) -> None:
        self.votes = 0
        self.world = int(os.environ["WHOLE_WORLD"])
        folder, rank = Path(os.environ["FOLDER"]), os.environ["LOCAL_RANK"]
        self.done = folder / "done"
        self.is_victim = rank == os.environ["VICTIM"]
        with (folder / f"pids-{rank}").open("a") as file:
            file.write(f"{os.getpid()}\n")

    def come_to(self, point: str) -> None:
        """End this process if the next fault is at this point."""
        if self.is_next(point):
            with self.done.open("a") as file:
                file.write(f"{point}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def is_next(self, point: str) -> bool:
        """Whether the next fault is at this point of this step."""
        if not self.is_victim or self.votes < VOTES_BEFORE:
            return False
        come = len(self.done.read_text().splitlines()) if self.done.exists() else 0
        return POINTS[come : come + 1] == (point,)


def install(faults: Faults) -> None:
    """Look for each point where the trainer comes to it."""
    first_of_step: set[int] = set()

    def decide(report: StepReport, group: Group) -> StepDecision:
        faults.come_to("vote")
        decision = _decide(report, group)
        faults.come_to("optimizer")
        faults.votes += group.world_size == faults.world
        return decision

    def before_forward(*_: object) -> None:
        if torch.is_grad_enabled():
            faults.come_to("forward")

    def after_forward(_: nn.Module, __: object, output: Any) -> None:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        output.register_hook(lambda _: faults.come_to("first bucket"))  # the first gradient of any layer ends it
        if faults.votes not in first_of_step:
            first_of_step.add(faults.votes)
            output.register_hook(lambda _: faults.come_to("last bucket"))  # of the first layer, computed last

    train_step.decide_step = decide
    register_module_forward_pre_hook(before_forward)
    register_module_forward_hook(after_forward)


if __name__ == "__main__":
    install(Faults())
    sys.exit(main(sys.argv[1:]))
