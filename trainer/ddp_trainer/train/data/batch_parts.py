"""Collated batches as structures of parts: :func:`merge` concatenates them, :func:`micro_batches` divides one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadTask


def map_parts(function: Callable[..., Any], *batches: Batch) -> Batch:
    """Return a batch of the same structure with the results of a function for each part.

    Mappings, tuples and lists are structure, and everything else in them is a part. A tuple or list of plain values, as
    of one name per sample, is one part.

    Args:
        function: Receives the parts at the same place in all batches.
        *batches: One or more batches of the same structure.

    Raises:
        ValueError, KeyError: The batches have different structures.
    """
    first = batches[0]
    if isinstance(first, Mapping):
        return {key: map_parts(function, *(batch[key] for batch in batches)) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*(map_parts(function, *each) for each in zip(*batches, strict=True)))
    if isinstance(first, tuple | list) and any(isinstance(each, Tensor | Mapping | tuple | list) for each in first):
        return type(first)(map_parts(function, *each) for each in zip(*batches, strict=True))
    return function(*batches)


def merge(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, in order.

    Raises:
        BadTask: The batches differ in more than the number of samples.
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return map_parts(_concat_parts, *batches)
    except (RuntimeError, TypeError, KeyError, ValueError) as err:
        raise BadTask(
            f"--level fast computes a rank's batch slices as one, and they do not go together: {err}".rstrip(".") + ".",
            hint="Let all samples collate to tensors of one shape, or give --level ordered.",
        ) from None


def _concat_parts(*parts: Any) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], tuple | list):
        # Values that are not tensors, such as names: one per sample.
        return type(parts[0])(chain.from_iterable(parts))
    raise TypeError(f"a {type(parts[0]).__name__} cannot be joined with another")


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
