"""``data-parallel``: nn.DataParallel, one process that spreads every batch over all GPUs it sees."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.single import Single
from ddp_trainer.train.parallel.strategy import Parts
from ddp_trainer.train.utils.dynamo_stub import uncompiled

WHY_DDP = (
    "nn.DataParallel copies the whole model to every GPU in every pass, drives all GPUs from one Python process, and "
    "cannot leave the machine: DDP, with one process per GPU, is faster even on one machine (--strategy ddp)."
)


class DataParallel(Single):
    """For comparison; on the CPU, or with one GPU, the plain model."""

    remark = WHY_DDP

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        gpus = torch.cuda.device_count() if self._group.device.type == "cuda" else 0
        self._spread: nn.Module | None = None
        if gpus > 1:
            with uncompiled():
                self._spread = nn.DataParallel(parts.module(), device_ids=list(range(gpus)))

    def forward(self, batch: Batch) -> Tensor:
        """Each GPU computes a slice of the samples; the first gathers their losses."""
        if self._spread is None:
            return super().forward(batch)
        losses: Tensor = self._spread(batch)
        return losses
