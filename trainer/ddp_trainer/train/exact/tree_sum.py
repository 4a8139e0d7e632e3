"""Sums over the batch slices of a step, with the same bits for any assignment of slices to ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.reduction_tree import BinaryCounter, TreeNode, subtree_roots
from ddp_trainer.train.exact.tree_allreduce import exchange


class TreeSum:
    """Sum over batch slices: call :meth:`put` for each slice in order, then :meth:`total`.

    A slice without values counts as zeros, at any number of ranks, because -0 + 0 differs from -0.
    """

    def __init__(self, batch_slices: int, group: Group, zeros: Callable[[], list[Tensor]]) -> None:
        """``zeros`` returns zeros with the shapes and dtypes of the values of a slice."""
        self._batch_slices = batch_slices
        self._group = group
        self._zeros = zeros
        self._counter = BinaryCounter[list[Tensor]](batch_slices, _add)
        self._runs = [owned(batch_slices, group.world_size, rank) for rank in range(group.world_size)]
        self.clear()

    def clear(self) -> None:
        """Drop all values."""
        self._counter.clear()
        self._next = self.local_slices.start

    @property
    def local_slices(self) -> range:
        """Slices of this rank."""
        return self._runs[self._group.rank]

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Set the slices of every rank, in rank order, and drop all values. All ranks must pass the same."""
        self._runs = list(batch_slices)
        self.clear()

    def put(self, slice_index: int, values: list[Tensor]) -> None:
        """Add the values of a slice. The tensors are modified.

        Args:
            slice_index: Index of the slice, which belongs to this rank. Slices are added in ascending order.
            values: Tensors with the shapes and dtypes of the zeros that this sum was created with.
        """
        self._fill_up_to(slice_index)
        self._counter.put(TreeNode(0, slice_index), values)
        self._next = slice_index + 1

    def _fill_up_to(self, slice_index: int) -> None:
        for missing in range(self._next, slice_index):
            self._counter.put(TreeNode(0, missing), self._zeros())
        self._next = slice_index

    def total(self) -> list[Tensor]:
        """Return the sum over all slices of all ranks, and drop all values. Every rank must call it.

        Raises:
            PeerLost: A peer was lost.
        """
        self._fill_up_to(self.local_slices.stop)
        if self._group.world_size == 1:
            total = self._counter.root()
        else:
            nodes = [subtree_roots(self._batch_slices, run) for run in self._runs]
            total = exchange(self._counter.values, nodes, self._batch_slices, self._group)
        self.clear()
        return total


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)  # on a GPU a few kernels instead of one per weight, as in torch's optimizers
    return left
