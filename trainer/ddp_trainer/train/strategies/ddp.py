"""``ddp``: gradients are added up by DistributedDataParallel, in buckets, while the backward pass still runs."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from ddp_trainer.train.lazy_dynamo import uncompiled
from ddp_trainer.train.strategies.strategy import Parts, Strategy
from ddp_trainer.train.task import Batch


class Ddp(Strategy):
    """The default for more than one rank."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._exchanged = False
        with self._group.watched(), uncompiled():
            self._ddp = DistributedDataParallel(
                self._loss,
                device_ids=[self._group.device] if self._group.device.type == "cuda" else None,
                # The step shares buffers itself, also where rank 0's are wanted: see ddp_trainer.train.buffers.
                forward_sync_buffers=False,
                bucket_cap_mb=parts.config.bucket_mb,
                find_unused_parameters=parts.config.find_unused_parameters,
                static_graph=parts.config.static_graph,
                gradient_as_bucket_view=parts.config.gradient_as_bucket_view,
            )

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Nothing is exchanged yet."""
        self._exchanged = False

    def alone(self) -> AbstractContextManager[None]:
        """DDP's own."""
        return self._ddp.no_sync()

    def forward(self, batch: Batch | None) -> Tensor:
        """Through DDP, which prepares for the backward pass."""
        with uncompiled():
            return self._ddp(batch)  # type: ignore[no-any-return] # a Module's call is untyped

    def backward(self, loss: Tensor, samples: int) -> None:
        """DDP averages over ranks, and what is wanted is the sum."""
        with self._group.watched_backward():
            torch.autograd.backward(loss * (self._group.world_size / samples))
        self._exchanged = self._ddp.require_backward_grad_sync

    def reduce(self, samples: int) -> None:
        """The last backward pass did it; a rank that had none takes part with zeros, for which the others wait."""
        if not self._exchanged:
            self.backward(self.forward(None), samples)
