"""Division of a batch into micro-batches, for slices that do not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ddp_trainer.train.data.batch_parts import map_parts
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadTask


def micro_batches(batch: Batch, samples: int, most: int) -> Sequence[Batch]:
    """Split a batch into consecutive micro-batches.

    Args:
        batch: Collated samples.
        samples: Number of samples in the batch.
        most: Largest number of samples in a micro-batch.

    Raises:
        BadTask: A part of the batch does not have ``samples`` entries.
    """
    if samples <= most:
        return (batch,)
    pieces = [slice(start, start + most) for start in range(0, samples, most)]
    return [map_parts(partial(_slice_part, samples=samples, where=where), batch) for where in pieces]


def _slice_part(part: Any, samples: int, where: slice) -> Any:
    if isinstance(part, Tensor | tuple | list) and len(part) == samples:
        return part[where]
    size = f"{len(part)} entries" if hasattr(part, "__len__") else "no length"
    raise BadTask(
        f"--micro-batch cuts a batch of {samples} samples, but a {type(part).__name__} in it has {size}.",
        hint="Let the samples collate to tensors whose first dimension counts samples, or leave --micro-batch out.",
    )
