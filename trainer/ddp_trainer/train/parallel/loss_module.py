"""One pass over samples as a module of its own, so that DDP and its kin can wrap all that happens in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch


class SampleLosses(nn.Module):
    """Losses of some samples, one each, shape ``(n,)``; of no samples, a zero that depends on every weight.

    DDP counts on a gradient of every weight in each backward pass, so a rank without samples gives zeros.
    """

    def __init__(self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Batch | None) -> Tensor:
        """Losses of the samples, or zero for None."""
        if batch is None:
            zeros = [(weight * 0).sum() for weight in self.model.parameters() if weight.requires_grad]
            return torch.stack(zeros).sum()
        return self._losses(self.model, batch)
