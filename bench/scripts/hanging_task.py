"""A task for the reference trainer that gets into trouble on order, and waits for its peers once per slice."""

from __future__ import annotations

import os
import time

import torch.distributed as dist
from hang_faults import barrier, inject_fault
from torch import Tensor, nn

from ddp_workloads.digits import Digits

PAUSE_SECONDS = 0.05
READY_STEP = 40


class Hanging(Digits):
    """Digits, slowly."""

    name = "hanging"

    def __init__(self) -> None:
        super().__init__()
        self._rank, self._step = int(os.environ["RANK"]), 0
        self._group: dist.ProcessGroup | None = None

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the losses of digits, after the ordered fault."""
        barrier(inject_fault(self._rank))
        if dist.group.WORLD is not self._group:  # a survivor keeps its process, and counts anew in every group
            self._group, self._step = dist.group.WORLD, 0
        self._step += 1
        if self._step == READY_STEP and self._rank == 0:
            os.write(1, f"ready: pid={os.getpid()}\n".encode())
        time.sleep(PAUSE_SECONDS)
        return super().losses(model, batch)
