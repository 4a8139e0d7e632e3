"""Traversal of the parts of collated batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ddp_trainer.train.data.task import Batch


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
