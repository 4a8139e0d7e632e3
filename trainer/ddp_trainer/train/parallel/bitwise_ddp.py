"""Strategy of ``--level exact``: results have the same bits at any number of ranks.

:class:`Exact` computes the gradients of each batch slice separately. It adds them up along a tree that does not
depend on the world size, with :class:`~ddp_trainer.train.exact.tree_allreduce.TreeSum`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.exact.tree_allreduce import TreeSum, hardware_id, require_same_hardware
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments, send_from_first
from ddp_trainer.train.utils.errors import BadTask


class Exact(Strategy):
    """Data parallelism whose result has the same bits at any number of ranks, one included.

    A weight that a slice does not use has a gradient of zeros for that slice. A weight that no slice uses has no
    gradient: the optimizer skips it, weight decay included, as in one process. Ranks exchange gradients after the
    backward passes. A bucket that is reduced earlier would have to wait for all slices of all ranks.
    """

    separates_slices = True

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        require_same_hardware(hardware_id(arguments.group.device), arguments.group)
        if arguments.group.world_size > 1:
            send_from_first([*self.model.parameters(), *self.model.buffers()], arguments.group)
        self._tree = TreeSum(arguments.plan.batch_slices, arguments.group, self._zeros)
        self._loss_of_slice = self._no_loss()
        self._loss_of_step = self._no_loss()

    def _no_loss(self) -> Tensor:
        return torch.zeros((), dtype=torch.float64, device=self._group.device)

    def _zeros(self) -> list[Tensor]:
        unused = torch.zeros(len(self._weights), device=self._group.device)
        return [*(torch.zeros_like(weight) for weight in self._weights), unused, self._no_loss()]

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Drop the sums of an earlier attempt that failed."""
        self._tree.clear()
        self._loss_of_slice = self._no_loss()

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses, and add their sum to the loss of the slice, which is reduced along the tree."""
        losses = super().forward(batch)
        self._loss_of_slice += losses.detach().sum()
        return losses

    def slice_done(self, slice_index: int) -> None:
        """Move the slice's gradients to the tree, so that those of the next slice are not added to them."""
        used = torch.tensor([weight.grad is not None for weight in self._weights], dtype=torch.float32)
        gradients = [self._pop_grad(weight) for weight in self._weights]
        self._tree.put(slice_index, [*gradients, used.to(self._group.device), self._loss_of_slice])
        self._loss_of_slice = self._no_loss()

    def _pop_grad(self, weight: Tensor) -> Tensor:
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
        """Set each gradient to its sum over all slices, added up along the tree."""
        *gradients, used, self._loss_of_step = self._tree.total()
        for weight, gradient, slices in zip(self._weights, gradients, used.tolist(), strict=True):
            weight.grad = _match_weight_layout(gradient, weight) if slices else None

    def reported_loss(self, own: Tensor) -> Tensor:
        """Return the tree's sum on rank 0 and zero on the others: adding zeros in any order keeps the bits."""
        return self._loss_of_step if self._group.rank == 0 else torch.zeros_like(own)

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Update the tree, whose exchange depends on which rank owns which slice."""
        self._tree.assign_slices(batch_slices)


def _match_weight_layout(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient in the weight's layout: the order in which kernels add up (norms) depends on the layout."""
    if gradient.storage_offset() == 0 and gradient.stride() == torch.empty_like(weight).stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
