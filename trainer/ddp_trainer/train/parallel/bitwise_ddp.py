"""What ``--level exact`` computes with: every logical shard by itself, added up along a tree that no world changes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.exact.hardware_check import hardware_id, require_same_hardware
from ddp_trainer.train.exact.tree_sum import TreeSum
from ddp_trainer.train.parallel.rank_collectives import send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.errors import BadTask


class Exact(Strategy):
    """The same bits at any number of ranks, one included.

    A weight that a shard does not use has a gradient of zeros there, and one that no shard uses has none: its optimizer
    leaves it alone, decay included, as in one process. Nothing is exchanged while a backward pass runs: a bucket that
    is added up early would have to wait for all shards of all ranks.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        require_same_hardware(hardware_id(parts.group.device), parts.group)
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        if parts.group.world_size > 1:
            send_from_first([*self.model.parameters(), *self.model.buffers()], parts.group)
        self._tree = TreeSum(parts.plan.shards, parts.group, self._zeros)
        self._loss_of_shard = self._no_loss()
        self._loss_of_step = self._no_loss()

    def _no_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._group.device)

    def _zeros(self) -> list[Tensor]:
        unused = torch.zeros(len(self._weights), device=self._group.device)
        return [*(torch.zeros_like(weight) for weight in self._weights), unused, self._no_loss()]

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """What an attempt that failed has left is of no use."""
        self._tree.clear()
        self._loss_of_shard = self._no_loss()

    def forward(self, batch: Batch) -> Tensor:
        """Also keeps the loss of the shard, which goes through the tree."""
        losses = super().forward(batch)
        self._loss_of_shard += losses.detach().sum()
        return losses

    def shard_done(self, shard: int) -> None:
        """Take the gradients out, so that the next shard's are not added to them."""
        used = torch.tensor([weight.grad is not None for weight in self._weights], dtype=torch.float32)
        gradients = [self._taken(weight) for weight in self._weights]
        self._tree.put(shard, [*gradients, used.to(self._group.device), self._loss_of_shard])
        self._loss_of_shard = self._no_loss()

    def _taken(self, weight: Tensor) -> Tensor:
        gradient, weight.grad = weight.grad, None
        if gradient is None:
            return torch.zeros_like(weight)
        if gradient.is_sparse:
            raise BadTask(
                "--level exact cannot add up sparse gradients, whose entries come in an order of their own.",
                hint="Build the embedding with sparse=False, or give --level ordered.",
            )
        return gradient

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Add up along the tree."""
        *gradients, used, self._loss_of_step = self._tree.total()
        for weight, gradient, shards in zip(self._weights, gradients, used.tolist(), strict=True):
            weight.grad = _with_memory_of_its_own(gradient, weight) if shards else None

    def loss_for_vote(self, own: Tensor) -> Tensor:
        """The tree's sum from rank 0 and zeros from the others: adding zeros in any order changes nothing."""
        return self._loss_of_step if self._group.rank == 0 else torch.zeros_like(own)

    def reassign(self, shards: Sequence[range]) -> None:
        """Who owns what is what the exchange follows."""
        self._tree.reassign(shards)


def _with_memory_of_its_own(gradient: Tensor, weight: Tensor) -> Tensor:
    """Laid out as the weight and aligned: kernels that add up over a tensor, as a norm does, follow its layout."""
    if gradient.storage_offset() == 0 and gradient.stride() == torch.empty_like(weight).stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
