"""Running statistics that do not depend on the world size.

A BatchNorm layer updates its buffers with the statistics of each batch. Ranks process different batch slices, so their
buffers would diverge. DDP broadcasts the buffers of rank 0, which ignores the slices of other ranks. In
:class:`SharedBuffers`, every slice starts from the same buffers, and the step changes them by the mean change of all
slices. The result is the same at any world size, up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.tree_allreduce import TreeSum


class SharedBuffers:
    """Synchronizes the buffers of a model, at least one, over the batch slices of a step.

    Calls in each step, in order:

    1. :meth:`slice_done` after each pass over a slice.
    2. :meth:`close_slice` after the last pass over a slice.
    3. :meth:`gather` before the vote.
    4. :meth:`commit` or :meth:`discard`.
    """

    def __init__(self, model: nn.Module, group: Group) -> None:
        self._group = group
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel()]
        self._sizes = [buffer.numel() for buffer in self._buffers]
        self._start = [buffer.detach().clone() for buffer in self._buffers]
        self._moved = [torch.zeros_like(buffer, dtype=torch.float64) for buffer in self._buffers]
        self._slices_done = 0
        self._total: Tensor | None = None

    def slice_done(self) -> None:
        """Record how a pass over a slice changed the buffers, and reset them for the next pass."""
        self._slices_done += 1
        for buffer, start, moved in zip(self._buffers, self._start, self._moved, strict=True):
            moved.add_(buffer.detach().double() - start.double())
            buffer.detach().copy_(start)

    def close_slice(self, slice_index: int) -> None:
        """End a batch slice after all passes over it."""

    def gather(self) -> None:
        """Exchange the data that :meth:`commit` needs; every rank must call it before the vote.

        The vote then covers the exchange. If the host does not wait for collectives, an abort could interrupt a
        collective after the vote unnoticed.
        """
        self._total = self._reduce_sum()

    def commit(self) -> None:
        """Change the buffers by the mean over all slices of all ranks, from the sums of :meth:`gather`."""
        if self._total is None:
            return
        mean = self._total[:-1] / self._total[-1].clamp(min=1)
        for start, step in zip(self._start, torch.split(mean, self._sizes), strict=True):
            _move(start, step.view_as(start))
        self.discard()  # and so continue from the new start

    def _reduce_sum(self) -> Tensor:
        """Return the changes of all slices of all ranks and their number, summed, as one vector."""
        return self._group.sum(torch.cat([moved.flatten() for moved in self._moved] + [self._count()]))

    def _reset(self) -> None:
        self._total = None
        for moved in self._moved:
            moved.zero_()
        self._slices_done = 0

    def discard(self) -> None:
        """Reset the buffers to the start of the step, and drop the recorded changes."""
        for buffer, start in zip(self._buffers, self._start, strict=True):
            buffer.detach().copy_(start)
        self._reset()

    def restart(self) -> None:
        """Start from the current buffers, after they were loaded."""
        for buffer, start in zip(self._buffers, self._start, strict=True):
            start.copy_(buffer.detach())

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Set the slices of every rank, in rank order, from the next step on."""

    def _count(self) -> Tensor:
        return torch.tensor([float(self._slices_done)], dtype=torch.float64, device=self._moved[0].device)


def _move(start: Tensor, step: Tensor) -> None:
    # Counters such as num_batches_tracked change by the same whole number in every slice.
    start.copy_(start.double() + (step if start.is_floating_point() else step.round()))


class FirstRanksBuffers(SharedBuffers):
    """Buffers of rank 0 on all ranks, as with DDP's ``broadcast_buffers``.

    Each slice of a rank continues from the buffers of the slice before.
    """

    def slice_done(self) -> None:
        """Do nothing: the next slice starts from the current buffers."""

    def commit(self) -> None:
        """Replace the buffers by those of rank 0."""
        if self._total is None:
            return
        for start, value in zip(self._start, torch.split(self._total, self._sizes), strict=True):
            start.copy_(value.view_as(start))
        self.discard()  # and so continue from the new start

    def _reduce_sum(self) -> Tensor:
        """Return the buffers of rank 0: the sum of those and of zeros from the other ranks."""
        flat = torch.cat([buffer.detach().double().flatten() for buffer in self._buffers])
        return self._group.sum(flat if self._group.rank == 0 else torch.zeros_like(flat))


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
        return torch.cat([part.flatten() for part in self._tree.total()])

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
