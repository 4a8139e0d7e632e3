"""``manual``: what DDP does, by hand and in the open; for reading, and for measuring what DDP's overlap is worth.

Copies of a model stay equal when they begin with equal weights and take equal steps. So rank 0 sends its weights
once, and in every step, after the backward passes, each gradient is averaged over the ranks with ``all_reduce``. DDP
does the same, but packs gradients into buckets and sends each while the backward pass computes the next.
"""

from __future__ import annotations

import torch

from ddp_trainer.train.parallel.rank_collectives import average, send_from_first
from ddp_trainer.train.parallel.strategy import Parts, Strategy


class Manual(Strategy):
    """Equal to ``ddp`` up to rounding."""

    averages = True

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Average every gradient; a weight that no sample of this rank reached contributes zeros."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        average([weight.grad for weight in self._weights if weight.grad is not None], self._group)
