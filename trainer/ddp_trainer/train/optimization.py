"""Optimizer and learning rate. The rate is a function of the global step, so there is no scheduler state to save."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ddp_trainer.train.config import Config, OptimizerName, ScheduleName
from ddp_trainer.train.lazy_dynamo import uncompiled
from ddp_trainer.train.task import ChoosesOptimizer, Task

_PEAK: Final = "peak_lr"


class Optimization:
    """An optimizer whose learning rate follows the global step."""

    def __init__(self, optimizer: Optimizer, config: Config, total_steps: int) -> None:
        self.optimizer = optimizer
        self._schedule = config.schedule
        self._warmup = config.warmup_steps
        self._total = total_steps
        self._clip = config.clip_norm
        self.learning_rate = 0.0
        """Rate of the first parameter group in the last step."""
        for group in optimizer.param_groups:
            group[_PEAK] = group["lr"]

    @classmethod
    def build(cls, task: Task, model: nn.Module, config: Config, total_steps: int) -> Optimization:
        """The task's own optimizer, or the one that the flags name."""
        with uncompiled():
            if isinstance(task, ChoosesOptimizer):
                optimizer = task.optimizer(model.parameters())
            elif config.optimizer is OptimizerName.ADAMW:
                optimizer = torch.optim.AdamW(
                    model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
                )
            else:
                optimizer = torch.optim.SGD(
                    model.parameters(),
                    lr=config.learning_rate,
                    momentum=config.momentum,
                    weight_decay=config.weight_decay,
                )
        return cls(optimizer, config, total_steps)

    def step(self, step: int) -> None:
        """Move the weights by the gradients of this global step, and forget them."""
        factor = rate_factor(self._schedule, step, self._warmup, self._total)
        for group in self.optimizer.param_groups:
            group["lr"] = group[_PEAK] * factor
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        if self._clip is not None:
            weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
            nn.utils.clip_grad_norm_(weights, self._clip)
        with uncompiled():
            self.optimizer.step()

    def forget(self) -> None:
        """Drop gradients, those of a step that was not committed included."""
        with uncompiled():
            self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer, and the peak rates."""
        with uncompiled():
            return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state; the peak rates are those of this run's flags."""
        peaks = [group[_PEAK] for group in self.optimizer.param_groups]
        with uncompiled():
            self.optimizer.load_state_dict(state)
        for group, peak in zip(self.optimizer.param_groups, peaks, strict=True):
            group[_PEAK] = peak


def rate_factor(schedule: ScheduleName, step: int, warmup: int, total: int) -> float:
    """Share of the peak learning rate at a global step, from 0: a linear rise, then half a cosine or a plateau.

    >>> [rate_factor(ScheduleName.COSINE, step, 2, 10) for step in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule is ScheduleName.CONSTANT:
        return 1.0
    done = (step - warmup) / max(total - warmup, 1)
    return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
