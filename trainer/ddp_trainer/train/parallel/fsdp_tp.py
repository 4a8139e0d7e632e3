"""``--parallel shard=N,tp=M``: slices of layers, of which ranks keep a piece each and gather what they compute with.

The plan of ``tp`` has cut the model first, and ``fully_shard`` cuts each slice again over the ranks that have the same
one. Gradients come to lie as the slices do before they are added up and dealt out over ``shard``.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.parallel.fsdp import Fsdp
from ddp_trainer.train.parallel.tensor_parallel import in_slices, whole_losses


class SlicedFsdp(Fsdp):
    """Of a model that :func:`ddp_trainer.train.parallel.apply_tp.apply_tp` has cut, and then
    :func:`.sharding.shard`.
    """

    computes_together: ClassVar[bool] = True

    def forward(self, batch: Batch) -> Tensor:
        """One pass more of all ranks; losses are whole."""
        with self._group.watched_pass(), in_slices():
            return whole_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """The same way back."""
        with in_slices():
            super().backward(losses, samples)

    def give_nothing(self, losses: Tensor) -> None:
        """As from losses that count."""
        with in_slices():
            super().give_nothing(losses)
