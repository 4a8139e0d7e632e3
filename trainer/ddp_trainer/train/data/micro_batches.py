"""Division of a batch into micro-batches, for shards that do not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadTask


def micro_batches(batch: Batch, samples: int, most: int | None) -> Sequence[Batch]:
    """Split a batch into consecutive micro-batches.

    Args:
        batch: Collated samples.
        samples: Number of samples in the batch.
        most: Largest number of samples in a micro-batch; None leaves the batch whole.

    Raises:
        BadTask: A part of the batch does not have ``samples`` entries.
    """
    if most is None or samples <= most:
        return (batch,)
    return [_piece(batch, samples, slice(start, start + most)) for start in range(0, samples, most)]


def _piece(batch: Batch, samples: int, where: slice) -> Batch:
    if isinstance(batch, Mapping):
        return {key: _piece(value, samples, where) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_piece(value, samples, where) for value in batch))
    if isinstance(batch, tuple | list) and any(_has_parts(value) for value in batch):
        return type(batch)(_piece(value, samples, where) for value in batch)
    if isinstance(batch, Tensor | tuple | list) and len(batch) == samples:
        return batch[where]
    size = f"{len(batch)} entries" if hasattr(batch, "__len__") else "no length"
    raise BadTask(
        f"--micro-batch cuts a batch of {samples} samples, but a {type(batch).__name__} in it has {size}.",
        hint="Let the samples collate to tensors whose first dimension counts samples, or leave --micro-batch out.",
    )


def _has_parts(value: Any) -> bool:
    return isinstance(value, Tensor | Mapping | tuple | list)
