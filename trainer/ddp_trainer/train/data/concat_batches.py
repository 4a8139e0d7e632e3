"""Concatenation of batches, for ``--level fast``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ddp_trainer.train.data.batch_parts import map_parts
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
