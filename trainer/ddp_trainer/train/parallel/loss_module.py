"""Forward pass and losses as one module, so that DDP and similar wrappers see the whole pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch


class SampleLosses(nn.Module):
    """Module that returns the losses of some samples, shape ``(n,)``, one loss per sample.

    For no samples it returns a zero that depends on every weight. DDP expects a gradient of every weight in each
    backward pass, so a rank without samples contributes zeros.
    """

    def __init__(self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Batch | None) -> Tensor:
        """Return the losses of the samples, or a zero for None."""
        if batch is None:
            zeros = [(weight * 0).sum() for weight in self.model.parameters() if weight.requires_grad]
            return torch.stack(zeros).sum()
        return self._losses(self.model, batch)
