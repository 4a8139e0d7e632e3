"""Concatenation of batches, for ``--level fast``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.utils.errors import BadTask


def merge(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, in order.

    Raises:
        BadTask: The batches differ in more than the number of samples.
    """
    if len(batches) == 1:
        return batches[0]
    try:
        return _merge(batches)
    except (RuntimeError, TypeError, KeyError, ValueError) as err:
        raise BadTask(
            f"--level fast computes a rank's shards as one batch, and they do not go together: {err}".rstrip(".") + ".",
            hint="Let all samples collate to tensors of one shape, or give --level ordered.",
        ) from None


def _merge(batches: Sequence[Batch]) -> Batch:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches))
    if isinstance(first, Mapping):
        return {key: _merge([batch[key] for batch in batches]) for key in first}
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*map(_merge, zip(*batches, strict=True)))
    if isinstance(first, tuple | list):
        if any(isinstance(value, Tensor | Mapping | tuple | list) for value in first):
            return type(first)(map(_merge, zip(*batches, strict=True)))
        # Values that are not tensors, such as names: one per sample.
        return type(first)(value for batch in batches for value in batch)
    raise TypeError(f"a {type(first).__name__} cannot be joined with another")
