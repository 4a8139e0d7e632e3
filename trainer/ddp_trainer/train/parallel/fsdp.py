"""``--parallel shard=N``: ranks keep a piece each of weights, gradients and moments, and gather what they compute with.

torch's ``fully_shard``: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
2020; Y. Zhao et al., "PyTorch FSDP", 2023. The weights of a block are gathered before it computes and let go
afterwards, in the forward and again in the backward pass; its gradients are added up over ranks, and each rank keeps
its piece of the sum. With ``replicate``, groups of ``shard`` ranks hold the model once each, and only the sums of
gradients travel between them (hybrid sharding).

Each pass is one that all ranks make together. A rank without samples in it, or that could not fetch them, computes one
that it had before and takes nothing of its gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.train.data.pass_count import Passes
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.strategy import Parts, Strategy


class Fsdp(Strategy):
    """Of a model that :func:`ddp_trainer.train.parallel.fully_shard.shard` has cut.

    What ranks give is added up, and not averaged: see :class:`.scaled_backward.ScaledBackward`.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        assert isinstance(self.model, FSDPModule)  # noqa: S101 - cut before the optimizer was built
        self._sharded: FSDPModule = self.model
        self._passes = Passes(parts.plan, parts.group.data_size, parts.config)
        assert parts.example is not None  # noqa: S101 - as every spread model has one
        self._example = parts.example
        self._batch: Batch | None = None
        self._made = self._wanted = 0
        self._adds_up = True

    def begin(self, step: int) -> None:
        """No pass yet."""
        self._made, self._wanted = 0, self._passes.of(step)

    def forward(self, batch: Batch) -> Tensor:
        """One pass more; gradients travel in the last one of all ranks, of which this rank's may be an empty one."""
        self._made += 1
        if (is_last := self._made >= self._wanted) is not self._adds_up:
            self._sharded.set_requires_gradient_sync(is_last)
            self._adds_up = is_last
        self._batch = batch
        with self._group.watched_pass():
            return super().forward(batch)

    def backward(self, losses: Tensor, samples: int) -> None:
        """Ranks gather weights and add up gradients meanwhile."""
        with self._group.watched_pass():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - of an empty pass nothing counts
        """Make the passes that other ranks make and this one does not."""
        if self._made >= self._wanted:
            return
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        while self._made < self._wanted:
            self.give_nothing(self.forward(self._example() if self._batch is None else self._batch))
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.detach().copy_(before)

    def give_nothing(self, losses: Tensor) -> None:
        """Go back from losses of which nothing counts."""
        with self._group.watched_pass():
            torch.autograd.backward(losses, torch.zeros_like(losses))
