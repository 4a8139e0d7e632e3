"""``--parallel tp=N``: ranks compute a slice each of every layer, and exchange activations within each.

M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019, with
torch's DTensor: which layer is cut how says the plan (:mod:`ddp_trainer.train.parallel.tp_plan`). All ranks of a
slice group see the same samples in the same passes. With ``replicate``, gradients are added up over replicas when the
step ends, each rank with those that have the same slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.grad_allreduce import buckets
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import piece
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.utils.dynamo_stub import uncompiled


class TensorParallel(Strategy):
    """Of a model that :func:`ddp_trainer.train.parallel.apply_tp.apply_tp` has cut."""

    computes_together: ClassVar[bool] = True

    def __init__(self, parts: Parts, mesh: Mesh) -> None:
        super().__init__(parts)
        self._mesh = mesh
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]

    def forward(self, batch: Batch) -> Tensor:
        """Logits stay cut by the words of a vocabulary where the plan leaves them so; losses are whole."""
        with self._group.watched_pass(), in_slices():
            return whole_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """The same way back."""
        with self._group.watched_pass(), in_slices():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Let gradients lie as their weights do, and add them up over replicas."""
        with self._group.watched():
            for weight in self._weights:
                settle(weight)
            if self._mesh.layout.replicate > 1:
                add_up_along(self._weights, self._mesh, "replicate")


@contextmanager
def in_slices() -> Iterator[None]:
    """Around passes, there and back, of a model in slices: its losses are computed from slices of logits."""
    with uncompiled(), loss_parallel():
        yield


def whole_losses(losses: Tensor) -> Tensor:
    """On every rank of a slice group; gradients go back to the slices."""
    return losses.full_tensor() if isinstance(losses, DTensor) else losses


def settle(weight: nn.Parameter) -> None:
    """Give a weight a gradient that lies over the ranks as it does: what each has a part of is added up.

    One that no sample reached gets zeros: other replicas may have had some.
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
    """Make the gradients the sums over the ranks that differ in this dimension alone, in place.

    ``waiting`` is entered around each exchange.
    """
    group = mesh.along(dimension).get_group()
    with torch.no_grad():
        for bucket in buckets(weights):
            pieces = [piece(weight.grad) for weight in bucket if weight.grad is not None]
            flat = torch.cat([piece.flatten() for piece in pieces])
            with waiting():
                dist.all_reduce(flat, group=group)
            for own, added in zip(pieces, torch.split(flat, [each.numel() for each in pieces]), strict=True):
                own.copy_(added.view_as(own))
