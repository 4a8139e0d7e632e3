"""Components that belong to one worker group: :class:`GroupComponents`, built by :mod:`.build_components`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.data.loaders.base import Feed
from ddp_trainer.train.data.loaders.step_batches import StepBatches
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.evaluation.evaluate import Evaluation
from ddp_trainer.train.exact.buffer_sync import SharedBuffers
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.parallel.load_balancer import LoadBalancer
from ddp_trainer.train.parallel.strategy import Strategy


@dataclass(slots=True, kw_only=True)
class GroupComponents:
    """Components that train and evaluate in one worker group."""

    group: Group
    strategy: Strategy
    feed: Feed
    batches: StepBatches
    buffers: SharedBuffers | None
    """Synchronization of the model's buffers; None for a model without buffers."""
    random: KeyedRng
    timer: StepTimer
    evaluation: Evaluation
    balance: LoadBalancer | None
    on_skip: Callable[[str], None]
    """Receives a message for each sample that could not be read."""
    batch_slices: range
    """Batch slices that this rank owns."""
    merges_slices: bool
    """All batch slices of this rank are computed in one pass."""
    no_loss: Tensor
    """Zero, a float64 scalar on the device."""
    in_doubt: bool = False
    """True between this rank's vote and the commit: other ranks may have committed the step."""

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Assign the batch slices of all ranks, in rank order, from the next step on.

        No collective may run here: the weights have moved, and the step is not counted everywhere yet.
        """
        self.batch_slices = batch_slices[self.group.rank]
        for part in (self.batches, self.feed):
            part.assign_slices(self.batch_slices)
        self.strategy.assign_slices(batch_slices)
        if self.buffers is not None:
            self.buffers.assign_slices(batch_slices)

    def restart(self) -> None:
        """Resume after weights and buffers were loaded from a checkpoint in the same group."""
        if self.buffers is not None:
            self.buffers.restart()
        # Prefetched samples belong to later steps than the next one, so the feed must drop them.
        self.feed.assign_slices(self.batch_slices)

    def close(self) -> None:
        """Close the feed, and undo the changes of an uncommitted step to buffers."""
        self.feed.close()
        if self.buffers is not None:
            self.buffers.discard()
