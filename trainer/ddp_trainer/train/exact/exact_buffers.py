"""Running statistics with the same bits at any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.buffer_sync import SharedBuffers
from ddp_trainer.train.exact.tree_sum import TreeSum


class TreeBuffers(SharedBuffers):
    """Changes buffers by the mean over slices, as its base class does, with sums along the reduction tree."""

    def __init__(self, model: nn.Module, group: Group, batch_slices: int) -> None:
        super().__init__(model, group)
        self._tree = TreeSum(batch_slices, group, self._zeros)

    def _zeros(self) -> list[Tensor]:
        return [*(torch.zeros_like(moved) for moved in self._moved), torch.zeros_like(self._count())]

    def close_slice(self, slice_index: int) -> None:
        """Add the changes of all passes over the slice to the tree."""
        self._tree.put(slice_index, [*(moved.clone() for moved in self._moved), self._count()])
        self._reset()

    def _reduce_sum(self) -> Tensor:
        return torch.cat([each.flatten() for each in self._tree.total()])

    def discard(self) -> None:
        """Reset the buffers to the start of the step, and drop the recorded changes."""
        super().discard()
        self._tree.clear()

    def restart(self) -> None:
        """Start from the current buffers, after they were loaded, possibly during a step."""
        super().restart()
        self._reset()
        self._tree.clear()

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Set the slices of every rank, in rank order, from the next step on."""
        self._tree.assign_slices(batch_slices)
