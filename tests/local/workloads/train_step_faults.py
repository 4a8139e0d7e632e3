"""The trainer, one rank of which ends at chosen points of a step, once for each point, whenever it has trained a while.

The rank whose :func:`member` is ``VICTIM`` comes to all :data:`POINTS`; the file ``done`` in ``FOLDER`` has a line for
each that came, and ``pids-MEMBER`` a line for each process of a member: how many points had come before it started.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ddp_trainer.train import step as train_step
from ddp_trainer.train.cli import main
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.step import StepDecision, StepReport
from tests.local.workloads.train_layouts import DrawnWhole

POINTS: Final = ("forward", "first bucket", "last bucket", "vote", "optimizer")
VOTES_BEFORE: Final = 3
"""Steps of the whole group before the next fault, as many as are compared after one."""
PAUSE_SECONDS: Final = 0.1
PAUSE_GROWTH: Final = 1.6
"""Steps of a smaller group become slower and slower, so that it takes few of them until the lost rank is back."""
SCALED_STEP: Final = 20
SCALE: Final = "SCALE"
"""Variable: factor of the gradients of step :data:`SCALED_STEP`, as a wrong divisor would be one."""

_decide = train_step.decide_step


class Normalized(DrawnWhole):
    """A task with buffers that the forward pass changes."""

    def model(self) -> nn.Module:
        """A GPT, and BatchNorm of its logits."""
        return nn.Sequential(super().model(), nn.BatchNorm1d(self.window))


def member() -> str:
    """The node's name and the local rank."""
    return f"{os.environ['DDP_POD_NAME']}-{os.environ['LOCAL_RANK']}"


class Faults:
    """Counts the votes of this process, and ends it when a point comes."""

    def __init__(self) -> None:
        self.votes = 0
        self.votes_of_fewer = 0
        self.world = int(os.environ["WHOLE_WORLD"])
        self.done = Path(os.environ["FOLDER"], "done")
        self.is_victim = member() == os.environ["VICTIM"]
        with self.done.with_name(f"pids-{member()}").open("a") as file:
            file.write(f"{self._count_done()}\n")

    def _count_done(self) -> int:
        return len(self.done.read_text().splitlines()) if self.done.exists() else 0

    def count(self, world: int) -> None:
        """Count the vote of a group of this size."""
        if world == self.world:
            self.votes += 1
            self.votes_of_fewer = 0
        else:
            time.sleep(PAUSE_SECONDS * PAUSE_GROWTH**self.votes_of_fewer)
            self.votes_of_fewer += 1

    def come_to(self, point: str) -> None:
        """End this process if the next fault is at this point of this step."""
        if not self.is_victim or self.votes < VOTES_BEFORE:
            return
        come = self._count_done()
        if POINTS[come : come + 1] == (point,):
            with self.done.open("a") as file:
                file.write(f"{point}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def install(faults: Faults) -> None:
    """Hook each point of the trainer at which a fault may occur."""
    first_of_step: set[int] = set()
    weights: dict[int, nn.Parameter] = {}

    def decide(report: StepReport, group: Group) -> StepDecision:
        faults.come_to("vote")
        decision = _decide(report, group)
        faults.come_to("optimizer")
        faults.count(group.world_size)
        if faults.votes == SCALED_STEP and SCALE in os.environ:
            torch._foreach_mul_([weight.grad for weight in weights.values()], float(os.environ[SCALE]))
        return decision

    def before_forward(module: nn.Module, *_: object) -> None:
        if torch.is_grad_enabled():
            weights.update({id(weight): weight for weight in module.parameters(recurse=False)})
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
