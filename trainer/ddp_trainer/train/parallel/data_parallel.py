"""Strategies of one process: ``single``, and ``data-parallel``, which splits every batch over all visible GPUs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig


class Single(Strategy):
    """Training in one process.

    It rejects a group of several ranks: each would train a separate model on its part of the data.

    Raises:
        BadConfig: The group has more than one rank.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        if self._group.world_size > 1:
            raise BadConfig(
                f"--strategy {parts.config.strategy} trains in one process, and this group has "
                f"{self._group.world_size} ranks.",
                hint="Start one process, or give --strategy ddp.",
            )


WHY_DDP = (
    "nn.DataParallel copies the whole model to every GPU in every pass, drives all GPUs from one Python process, and "
    "cannot leave the machine: DDP, with one process per GPU, is faster even on one machine (--strategy ddp)."
)


class DataParallel(Single):
    """nn.DataParallel, for comparison with DDP. On the CPU, or with one GPU, it runs the plain model."""

    remark = WHY_DDP

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        gpus = torch.cuda.device_count() if self._group.device.type == "cuda" else 0
        self._spread: nn.Module | None = None
        if gpus > 1:
            with uncompiled():
                self._spread = nn.DataParallel(parts.module(), device_ids=list(range(gpus)))

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses of the samples, computed in slices by all GPUs and gathered on the first."""
        if self._spread is None:
            return super().forward(batch)
        losses: Tensor = self._spread(batch)
        return losses
