"""Strategy ``manual``: data parallelism written out by hand, for reading and for measuring the gain of DDP's overlap.

Replicas of a model stay equal if they start with equal weights and take equal steps. Rank 0 therefore broadcasts its
weights once. After the backward passes of each step, ``all_reduce`` averages each gradient over the ranks. DDP does the
same, but packs gradients into buckets and sends each bucket while the backward pass computes the next.
"""

from __future__ import annotations

import torch

from ddp_trainer.train.parallel.rank_collectives import average, send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy


class Manual(Strategy):
    """Data parallelism without overlap; equal to ``ddp`` up to rounding."""

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if not self._group.has_agreed_state:
            send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Average every gradient over ranks; a weight without a gradient on this rank contributes zeros."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        average([weight.grad for weight in self._weights if weight.grad is not None], self._group)
