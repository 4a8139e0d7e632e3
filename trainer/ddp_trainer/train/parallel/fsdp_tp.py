"""Strategy of ``--parallel shard=N,tp=M``: tensor parallelism with fully sharded slices.

The tensor-parallel plan cuts the model first. ``fully_shard`` then cuts each slice again, over the ranks that hold the
same slice. Gradients get the placement of the slices before they are reduce-scattered over ``shard``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.fsdp import Fsdp
from ddp_trainer.train.parallel.tensor_parallel import in_slices, whole_losses


class SlicedFsdp(Fsdp):
    """FSDP with tensor parallelism, for a model that is cut twice.

    :func:`ddp_trainer.train.parallel.apply_tp.apply_tp` cuts it first, then :func:`.fully_shard.shard`.
    """

    computes_together: ClassVar[bool] = True

    def forward(self, batch: Batch) -> Tensor:
        """Return the whole losses of one more pass of all ranks."""
        with self._group.watched_pass(), in_slices():
            return whole_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of losses that were computed from slices."""
        with in_slices():
            super().backward(losses, samples)

    def give_nothing(self, losses: Tensor) -> None:
        """Run a backward pass through slices that contributes zeros to the gradients."""
        with in_slices():
            super().give_nothing(losses)
