"""Number of passes in a step of a sharded model, the same on all ranks.

A pass through a sharded model gathers weights from all ranks. A rank with fewer slices or fewer samples than another
therefore makes empty passes for the rest. :class:`Passes` computes the number from the batch plan, without
communication.
"""

from __future__ import annotations

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.data.batch_plan import BatchPlan, cut, owned


class Passes:
    """Number of passes of the rank that makes the most."""

    def __init__(self, plan: BatchPlan, ranks: int, config: Config) -> None:
        """``ranks`` is the number of ranks that a batch is divided among."""
        self._plan = plan
        self._owned = [owned(plan.batch_slices, ranks, rank) for rank in range(ranks)]
        self._most = config.micro_batch
        self._together = config.level is Level.FAST
        self._known: dict[int, int] = {}

    def of(self, step: int) -> int:
        """Return the number of passes in a global step; at least 1."""
        length = self._plan.batch_length(step)
        if length not in self._known:
            self._known[length] = max(self._of_rank(length, batch_slices) for batch_slices in self._owned)
        return self._known[length]

    def _of_rank(self, length: int, batch_slices: range) -> int:
        slices = [cut(length, self._plan.batch_slices, slice_index) for slice_index in batch_slices]
        sizes = [where.stop - where.start for where in slices]
        return sum(map(self._of_samples, [sum(sizes)] if self._together else sizes))

    def _of_samples(self, samples: int) -> int:
        return min(samples, 1) if self._most is None else -(-samples // self._most)
