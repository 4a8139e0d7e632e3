"""Parts of a user-written loop that take the places of the reference trainer's: task, strategy and optimizer.

They are built for :class:`~ddp_trainer.train.elastic_loop.ElasticLoop`, whose user computes losses and gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.task import Batch, Samples
from ddp_trainer.train.distributed.grad_allreduce import add_up
from ddp_trainer.train.optim.optimizer import PEAK, LossScale, OptimizerWrapper
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments
from ddp_trainer.train.utils.dynamo_stub import uncompiled


class UserTask:
    """Task of a user-written loop: the objects that the user has built."""

    def __init__(
        self, name: str, model: nn.Module, optimizer: Optimizer, samples: Samples, scheduler: LRScheduler | None
    ) -> None:
        """Keep the user's objects; ``scheduler`` is None without a learning-rate scheduler."""
        self.name = name
        self.scheduler = scheduler
        self._model, self._optimizer, self._samples = model, optimizer, samples

    def model(self) -> nn.Module:
        """Return the user's model."""
        return self._model

    def train_samples(self) -> Samples:
        """Return the user's samples."""
        return self._samples

    def test_samples(self) -> Samples:
        """Return no samples: the user evaluates."""
        return ()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:  # noqa: ARG002 - it has its weights
        """Return the user's optimizer."""
        return self._optimizer

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        """Not called: the user computes losses."""
        raise NotImplementedError

    def metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """Not called: there are no test samples."""
        raise NotImplementedError


class UserStrategy(Strategy):
    """Strategy of a user-written loop: the model is not wrapped, and gradients are added up at the end of the step."""

    computes_together = True  # an error while samples are fetched is raised inside the user's loop

    def __init__(self, arguments: StrategyArguments, optimizer: Optimizer) -> None:
        super().__init__(arguments)
        self._optimizer = optimizer

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - the user's losses were divided by it
        """Replace each gradient by its sum over ranks."""
        add_up([weight for group in self._optimizer.param_groups for weight in group["params"]], self._group)


class UserOptimizer(OptimizerWrapper):
    """Optimizer of a user-written loop, whose learning rates belong to the user and to the user's scheduler."""

    def __init__(self, task: UserTask, config: Config, loss_scale: LossScale | None) -> None:
        super().__init__(task.optimizer(()), config, total_steps=0, loss_scale=loss_scale)
        self._scheduler = task.scheduler
        for group in self.optimizer.param_groups:
            del group[PEAK]

    def zero_grad(self) -> None:
        """Drop all gradients, also those of weights that the user has added to the optimizer."""
        self._weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        super().zero_grad()

    def _set_lr(self, step: int) -> None:
        """Leave the learning rates alone."""

    def step(self, step: int) -> None:
        """Update the weights, then step the scheduler."""
        super().step(step)
        if self._scheduler is not None:
            with uncompiled():
                self._scheduler.step()

    def scheduler_state(self) -> dict[str, Any] | None:
        """Return the state of the scheduler; None without one."""
        return None if self._scheduler is None else self._scheduler.state_dict()

    def load_scheduler(self, state: dict[str, Any] | None) -> None:
        """Load a stored state of the scheduler, if there are both."""
        if self._scheduler is not None and state is not None:
            self._scheduler.load_state_dict(state)
