"""What a step asks a feed for, and what it gets."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ddp_trainer.train.data.task import Batch


class Request(NamedTuple):
    """The samples of one logical shard of one global step."""

    step: int
    epoch: int
    shard: int
    ids: Tensor
    """int64, not empty, in the order of the batch."""


class Fetched(NamedTuple):
    """The answer; a named tuple, so that torch's loader finds the tensors to pin in it."""

    batch: Batch | None
    """Collated, on the CPU; None where none of the samples could be read."""
    skipped: tuple[str, ...] = ()
    """Of each sample that was left out as told by ``--on-bad-sample skip``, why."""
