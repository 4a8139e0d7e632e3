"""Model, optimizer and scheduler of a user-written loop, to step, save and load together.

:class:`OwnParts` holds them for :class:`~ddp_trainer.train.elastic_loop.ElasticLoop`. :func:`identity_of` and
:func:`plan_of` derive the identity and the step plan of such a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer.train.checkpoint.manifest import Identity, architecture, signature
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import BatchPlan, choose_shards
from ddp_trainer.train.data.batch_reader import data_digest
from ddp_trainer.train.data.task import Samples
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.splitmix import ALGORITHM


class OwnState(TypedDict):
    """State of the user's model, optimizer and scheduler in a checkpoint."""

    model: dict[str, Tensor]
    optimizer: dict[str, object]
    scheduler: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class OwnParts:
    """Model, optimizer and scheduler of a user-written loop."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: LRScheduler | None

    @property
    def weights(self) -> Sequence[nn.Parameter]:
        """Weights that the optimizer steps."""
        return [weight for group in self.optimizer.param_groups for weight in group["params"]]

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Weights and buffers, in an order that all ranks share."""
        return [*self.model.parameters(), *self.model.buffers()]

    @property
    def learning_rate(self) -> float:
        """Learning rate of the optimizer's first parameter group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def forget(self) -> None:
        """Clear the gradients."""
        with uncompiled():
            self.optimizer.zero_grad()

    def move(self, largest_norm: float | None) -> None:
        """Step the optimizer, then the scheduler.

        Args:
            largest_norm: Gradients are scaled down together to this norm if theirs is larger; None for no clipping.
        """
        if largest_norm is not None:
            nn.utils.clip_grad_norm_(self.weights, largest_norm)
        with uncompiled():
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()

    def state_dict(self) -> OwnState:
        """Return the state for a checkpoint: tensors and plain values, unless the scheduler holds other objects."""
        with uncompiled():
            optimizer = self.optimizer.state_dict()
        scheduler = None if self.scheduler is None else self.scheduler.state_dict()
        return {"model": self.model.state_dict(), "optimizer": optimizer, "scheduler": scheduler}

    def load_state_dict(self, state: OwnState) -> None:
        """Restore a stored state."""
        self.model.load_state_dict(state["model"])
        with uncompiled():
            self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])

    def to(self, device: torch.device) -> None:
        """Move the model to a device; its weights remain the same objects, which the optimizer holds."""
        self.model.to(device)


def identity_of(model: nn.Module, samples: Samples, config: Config) -> Identity:
    """Return the identity of this run, by which its checkpoints are recognized."""
    return Identity(
        task=config.task,
        model=signature(model),
        data=data_digest(object(), samples),  # type: ignore[arg-type] # only asked whether it has a digest
        samples=len(samples),
        seed=config.seed,
        global_batch=config.global_batch,
        order=ALGORITHM,
        architecture=architecture(model),
    )


def plan_of(samples: Samples, config: Config, env: Environment, stored_shards: int | None) -> BatchPlan:
    """Return the plan that assigns samples to steps and logical shards.

    Args:
        samples: The training samples.
        config: The configuration.
        env: The environment of this process, with the numbers of ranks.
        stored_shards: Number of logical shards of the state to resume from; None for a new run.

    Raises:
        BadConfig: The layout distributes the model over ranks, which a user-written loop does not support.
    """
    if config.spreads:
        raise BadConfig(
            f"--parallel is {config.parallel}, and a loop of one's own holds the whole model on each rank.",
            hint="Give replicate alone, or train a task of the trainer.",
        )
    shards = choose_shards(
        config.shards if config.shards is not None else stored_shards,
        promised_ranks=env.promised_ranks,
        most_ranks=env.most_ranks,
        world_size=env.world_size,
        global_batch=config.global_batch,
    )
    return BatchPlan(
        samples=len(samples),
        global_batch=config.global_batch,
        shards=shards,
        seed=config.seed,
        epochs=config.epochs,
        max_steps=config.max_steps,
    )
