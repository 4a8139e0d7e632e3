"""Sums over the logical shards of a step, that have the same bits whichever ranks computed the shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.reduction_tree import BinaryCounter, Node, cover
from ddp_trainer.train.exact.tree_allreduce import exchange


class TreeSum:
    """``put`` what each shard gives, in the order of the shards, then take the ``total``.

    A shard that gives nothing gives zeros, at any number of ranks: -0 + 0 is not the same as -0.
    """

    def __init__(self, shards: int, group: Group, zeros: Callable[[], list[Tensor]]) -> None:
        """``zeros`` of the shapes and types that every shard gives."""
        self._shards = shards
        self._group = group
        self._zeros = zeros
        self._counter = BinaryCounter[list[Tensor]](shards, _add)
        self._runs = [owned(shards, group.world_size, rank) for rank in range(group.world_size)]
        self.clear()

    def clear(self) -> None:
        """Forget what was put in."""
        self._counter.clear()
        self._next = self.own.start

    @property
    def own(self) -> range:
        """This rank's shards."""
        return self._runs[self._group.rank]

    def reassign(self, shards: Sequence[range]) -> None:
        """Take over the shards of every rank, in rank order. All ranks pass the same."""
        self._runs = list(shards)
        self.clear()

    def put(self, shard: int, values: list[Tensor]) -> None:
        """What a shard gives; the tensors are used up."""
        self._fill_up_to(shard)
        self._counter.put(Node(0, shard), values)
        self._next = shard + 1

    def _fill_up_to(self, shard: int) -> None:
        for missing in range(self._next, shard):
            self._counter.put(Node(0, missing), self._zeros())
        self._next = shard

    def total(self) -> list[Tensor]:
        """The sum over all shards of all ranks, which all call this; nothing is put in any more.

        Raises:
            PeerLost: a peer went away.
        """
        self._fill_up_to(self.own.stop)
        if self._group.world_size == 1:
            total = self._counter.root()
        else:
            nodes = [cover(self._shards, run) for run in self._runs]
            total = exchange(self._counter.values, nodes, self._shards, self._group)
        self.clear()
        return total


def _add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    torch._foreach_add_(left, right)  # as torch's optimizers do: on a GPU a few kernels in place of one per weight
    return left
