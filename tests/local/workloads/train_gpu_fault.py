"""A task whose fourth pass on rank 1 of the first group fails as CUDA reports it, while the other rank waits for it."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn

from tests.local.workloads.train_bits import SmallDigits


class FailingGpu(SmallDigits):
    """As :class:`SmallDigits`."""

    passes = 0

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Raise on rank 1 what torch raises for a GPU with a memory error."""
        self.passes += model.training
        if self.passes == 4 and os.environ["RANK"] == "1" and os.environ["DDP_GENERATION"] == "1":
            raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
        return super().losses(model, batch)
