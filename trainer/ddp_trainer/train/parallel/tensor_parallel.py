"""Strategy of ``--parallel tp=N``: tensor parallelism with torch's DTensor.

Each rank computes a slice of every layer, and ranks exchange activations within each layer. The plan
(:mod:`ddp_trainer.train.parallel.apply_tp`) defines how each layer is cut. All ranks of a tensor-parallel group see the
same samples in the same passes. With ``replicate``, gradients are added up over replicas at the end of the step, among
the ranks that hold the same slice.

Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.grad_allreduce import buckets
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import local_shard
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.dynamo_stub import uncompiled


class TensorParallel(Strategy):
    """Strategy for a model that :func:`ddp_trainer.train.parallel.apply_tp.apply_tp` has cut."""

    computes_together = True

    def __init__(self, parts: Parts, mesh: Mesh) -> None:
        super().__init__(parts)
        self._mesh = mesh

    def forward(self, batch: Batch) -> Tensor:
        """Return whole losses; logits stay sharded over the vocabulary if the plan leaves them so."""
        with self._group.convert_pass_errors(), in_slices():
            return full_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of losses that were computed from slices.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        with self._group.convert_pass_errors(), in_slices():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Give each gradient the placement of its weight, and add gradients up over replicas."""
        with self._group.convert_errors():
            for weight in self._weights:
                redistribute_gradient(weight)
            if self._mesh.layout.replicate > 1:
                add_up_along(self._weights, self._mesh, "replicate")


@contextmanager
def in_slices() -> Iterator[None]:
    """Context of forward and backward passes of a sliced model: losses are computed from slices of logits."""
    with uncompiled(), loss_parallel():
        yield


def full_losses(losses: Tensor) -> Tensor:
    """Return the whole losses on every rank of a tensor-parallel group; gradients flow back to the slices.

    Args:
        losses: Losses, float ``(n,)``, a DTensor or a plain tensor. A plain tensor is returned unchanged.
    """
    return losses.full_tensor() if isinstance(losses, DTensor) else losses


def redistribute_gradient(weight: nn.Parameter) -> None:
    """Give a weight's gradient the placement of the weight; partial sums are added up.

    A weight without a gradient gets zeros, because other replicas may have one.
    """
    gradient = weight.grad
    if gradient is None:
        weight.grad = torch.zeros_like(weight)
    elif isinstance(gradient, DTensor) and isinstance(weight, DTensor) and gradient.placements != weight.placements:
        weight.grad = gradient.redistribute(placements=weight.placements)


def add_up_along(
    weights: list[nn.Parameter],
    mesh: Mesh,
    dimension: str,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Sum the gradients over the ranks of one mesh dimension, in place.

    Args:
        weights: Weights whose gradients are summed; those without a gradient are skipped.
        mesh: The mesh of the ranks.
        dimension: Name of the mesh dimension.
        waiting: Context that is entered around each all-reduce, for example a timer.
    """
    group = mesh.along(dimension).get_group()
    with torch.no_grad():
        for bucket in buckets(weights):
            pieces = [local_shard(weight.grad) for weight in bucket if weight.grad is not None]
            flat = torch.cat([piece.flatten() for piece in pieces])
            with waiting():
                dist.all_reduce(flat, group=group)
            for own, added in zip(pieces, torch.split(flat, [each.numel() for each in pieces]), strict=True):
                own.copy_(added.view_as(own))
