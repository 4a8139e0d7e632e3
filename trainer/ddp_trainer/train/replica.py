"""The model as it is trained: one shard in, the sum of its losses out, gradients added up over ranks by DDP."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.train.group import Group
from ddp_trainer.train.lazy_dynamo import uncompiled
from ddp_trainer.train.task import Batch


class ShardLoss(nn.Module):
    """Sum of the losses of one shard, a scalar; of no shard, a zero that depends on every weight.

    DDP counts on a gradient of every weight in each backward pass, so a rank without samples gives zeros.
    """

    def __init__(self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Batch | None) -> Tensor:
        """Loss of a shard, or zero for None."""
        if batch is None:
            zeros = [(weight * 0).sum() for weight in self.model.parameters() if weight.requires_grad]
            return torch.stack(zeros).sum()
        return self._losses(self.model, batch).sum()


class Replica:
    """This rank's copy of the model."""

    def __init__(self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor], group: Group) -> None:
        self.model = model
        self._group = group
        self._loss = ShardLoss(model, losses)
        self._ddp: DistributedDataParallel | None = None
        if group.world_size > 1:
            with group.watched(), uncompiled():
                self._ddp = DistributedDataParallel(
                    self._loss,
                    device_ids=[group.device] if group.device.type == "cuda" else None,
                    forward_sync_buffers=False,
                    gradient_as_bucket_view=True,
                )

    def forward(self, batch: Batch | None) -> Tensor:
        """Sum of the shard's losses."""
        if self._ddp is None:
            return self._loss(batch)  # type: ignore[no-any-return] # a Module's call is untyped
        with uncompiled():
            return self._ddp(batch)  # type: ignore[no-any-return] # a Module's call is untyped

    def backward(self, loss: Tensor, samples: int) -> None:
        """Add the gradients of ``loss / samples``, where ``samples`` are those of the whole global step.

        DDP averages over ranks, and what is wanted is the sum.
        """
        with self._group.watched_backward():
            torch.autograd.backward(loss * (self._group.world_size / samples))

    def alone(self) -> AbstractContextManager[None]:
        """Keep gradients on this rank: for all shards of a step but the last."""
        return nullcontext() if self._ddp is None else self._ddp.no_sync()
