"""Strategy of ``--parallel shard=N``: fully sharded data parallelism with torch's ``fully_shard``.

Each rank keeps one shard of weights, gradients and optimizer moments. The weights of a block are gathered before the
block computes and freed afterwards, in the forward and again in the backward pass. Gradients are reduce-scattered: each
rank keeps its shard of the sum. With ``replicate``, each group of ``shard`` ranks holds the model once, and replicas
exchange only the summed gradients (hybrid sharding). With ``tp``, the tensor-parallel plan cuts the model first, and
``fully_shard`` cuts each slice again. Gradients get the placement of the slices before they are reduce-scattered.

All ranks make the same number of passes, together. A rank that has no samples for a pass, or could not fetch them,
repeats an earlier batch and discards its gradients.

Sources: S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020; Y. Zhao et
al., "PyTorch FSDP", 2023.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.data.batch_plan import BatchPlan, cut, owned
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.parallel.tensor_parallel import full_losses, in_slices


class Fsdp(Strategy):
    """FSDP strategy for a model that :func:`ddp_trainer.train.parallel.fully_shard.shard` has cut.

    Gradients are summed over ranks, not averaged: see :class:`.strategy.ScaledBackward`.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        assert isinstance(self.model, FSDPModule)  # noqa: S101 - cut before the optimizer was built
        self._sharded: FSDPModule = self.model
        self._is_sliced = parts.spread is not None and parts.spread.mesh.layout.tp > 1
        self.computes_together = self._is_sliced
        self._passes = Passes(parts.plan, parts.group.data_size, parts.config)
        assert parts.example is not None  # noqa: S101 - every sharded model has one
        self._example = parts.example
        self._batch: Batch | None = None
        self._made = self._wanted = 0
        self._adds_up = True

    def begin(self, step: int) -> None:
        """Reset the count of passes, and look up how many this step needs on every rank."""
        self._made, self._wanted = 0, self._passes.of(step)

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses of one more pass.

        Gradients are exchanged in the last pass of the step. On this rank that pass may be an empty one.
        """
        self._made += 1
        if (is_last := self._made >= self._wanted) is not self._adds_up:
            self._sharded.set_requires_gradient_sync(is_last)
            self._adds_up = is_last
        self._batch = batch
        with self._group.convert_pass_errors(), self._pass_context():
            return full_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients; ranks gather weights and reduce gradients during the pass.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        with self._group.convert_pass_errors(), self._pass_context():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - empty passes contribute nothing
        """Make empty passes until this rank has made as many as the others; buffers are restored afterwards."""
        if self._made >= self._wanted:
            return
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        while self._made < self._wanted:
            losses = self.forward(self._example() if self._batch is None else self._batch)
            with self._group.convert_pass_errors(), self._pass_context():
                torch.autograd.backward(losses, torch.zeros_like(losses))
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.detach().copy_(before)

    def _pass_context(self) -> AbstractContextManager[None]:
        return in_slices() if self._is_sliced else nullcontext()


class Passes:
    """Number of passes of the rank that makes the most."""

    def __init__(self, plan: BatchPlan, ranks: int, config: Config) -> None:
        """``ranks`` is the number of ranks that a batch is divided among."""
        self._plan = plan
        self._owned = [owned(plan.batch_slices, ranks, rank) for rank in range(ranks)]
        self._most = config.micro_batch
        self._together = config.level is Level.FAST
        self._known: dict[int, int] = {}

    def of(self, step: int) -> int:
        """Return the number of passes in a global step; at least 1."""
        length = self._plan.batch_length(step)
        if length not in self._known:
            self._known[length] = max(self._of_rank(length, batch_slices) for batch_slices in self._owned)
        return self._known[length]

    def _of_rank(self, length: int, batch_slices: range) -> int:
        slices = [cut(length, self._plan.batch_slices, slice_index) for slice_index in batch_slices]
        sizes = [where.stop - where.start for where in slices]
        return sum(map(self._of_samples, [sum(sizes)] if self._together else sizes))

    def _of_samples(self, samples: int) -> int:
        return min(samples, 1) if self._most is None else -(-samples // self._most)
