"""Running statistics that do not depend on the world size.

A BatchNorm layer folds the statistics of each batch it sees into its buffers. Ranks see different shards, so their
buffers would drift apart, and DDP's remedy, the buffers of rank 0, forgets all other shards. Here every shard starts
from the same buffers, and the step moves them by the mean of what the shards asked for: the same at any world size,
up to rounding. Without floating-point buffers this costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp_trainer.train.distributed.group import Group


class SharedBuffers:
    """Buffers of a model over the shards of a step: ``shard_done`` after each, ``commit`` after the last."""

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._group = group
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._start = [buffer.detach().clone() for buffer in self._buffers]
        self._moved = [torch.zeros_like(buffer, dtype=torch.float64) for buffer in self._buffers]
        self._shards = 0
        self._total: Tensor | None = None

    def shard_done(self) -> None:
        """Take down what the shard did to the buffers, and put them back for the next one."""
        if not self._buffers:
            return
        self._shards += 1
        for buffer, start, moved in zip(self._buffers, self._start, self._moved, strict=True):
            moved.add_(buffer.detach().double() - start.double())
            buffer.detach().copy_(start)

    def close_shard(self, shard: int) -> None:
        """All passes over a logical shard are done."""

    def gather(self) -> None:
        """Exchange what :meth:`commit` needs; every rank must call it.

        Before the vote, whose verdict then covers it: where nobody waits for collectives, one after the vote could be
        cut off by an abort, and nobody would see it.
        """
        if self._buffers:
            self._total = self._summed()

    def commit(self) -> None:
        """Move the buffers by the mean over all shards of all ranks, which :meth:`gather` has come to."""
        if self._total is None:
            return
        mean = self._total[:-1] / self._total[-1].clamp(min=1)
        sizes = [buffer.numel() for buffer in self._buffers]
        for buffer, start, step in zip(self._buffers, self._start, torch.split(mean, sizes), strict=True):
            _move(start, step.view_as(start))
            buffer.detach().copy_(start)
        self._forget()

    def _summed(self) -> Tensor:
        """What all shards of all ranks asked for, and how many they are, as one vector."""
        return self._group.sum(torch.cat([moved.flatten() for moved in self._moved] + [self._count()]))

    def _forget(self) -> None:
        self._total = None
        for moved in self._moved:
            moved.zero_()
        self._shards = 0

    def discard(self) -> None:
        """Forget what the shards of this step did to the buffers: the step moves nothing."""
        for buffer, start in zip(self._buffers, self._start, strict=True):
            buffer.detach().copy_(start)
        self._forget()

    def restart(self) -> None:
        """The buffers were loaded from elsewhere: start from what they are now."""
        for buffer, start in zip(self._buffers, self._start, strict=True):
            start.copy_(buffer.detach())

    def reassign(self, shards: Sequence[range]) -> None:
        """Take over the shards of every rank, in rank order, that hold from the next step on."""

    def _count(self) -> Tensor:
        return torch.tensor([float(self._shards)], dtype=torch.float64, device=self._moved[0].device)


def _move(start: Tensor, step: Tensor) -> None:
    if start.is_floating_point():
        start.copy_((start.double() + step).to(start.dtype))
    else:
        # Counters such as num_batches_tracked move by the same whole number in every shard.
        start.copy_((start.double() + step.round()).to(start.dtype))


class FirstRanksBuffers(SharedBuffers):
    """DDP's ``broadcast_buffers``: rank 0's buffers after its own shards, one after the other."""

    def shard_done(self) -> None:
        """The next shard goes on from the buffers as this one left them."""

    def commit(self) -> None:
        """Rank 0's become everybody's."""
        if self._total is None:
            return
        sizes = [buffer.numel() for buffer in self._buffers]
        for buffer, start, value in zip(self._buffers, self._start, torch.split(self._total, sizes), strict=True):
            start.copy_(value.view_as(start).to(start.dtype))
            buffer.detach().copy_(start)
        self._total = None

    def _summed(self) -> Tensor:
        """The sum of what rank 0 has and the zeros of the others."""
        flat = torch.cat([buffer.detach().double().flatten() for buffer in self._buffers])
        return self._group.sum(flat if self._group.rank == 0 else torch.zeros_like(flat))
