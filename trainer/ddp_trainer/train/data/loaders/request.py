"""Request of a step to a feed, and the answer."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ddp_trainer.train.data.task import Batch


class Request(NamedTuple):
    """Request for the samples of one batch slice of one global step."""

    step: int
    epoch: int
    slice_index: int
    ids: Tensor
    """Sample ids in the order of the batch: int64, shape ``(n,)``, not empty."""


class BatchSlice(NamedTuple):
    """Fetched samples of one global step that a rank computes together: one batch slice, or all of its own merged."""

    slice_index: int
    """Number of the batch slice; of merged ones, the first."""
    batch: Batch
    """Collated samples on the device."""
    samples: int
    """Number of samples in the slice."""
    total_samples: int
    """Number of samples of the whole global step."""
    is_last: bool
    """True for the last slice of this rank in the step."""


class FetchResult(NamedTuple):
    """Samples of a request. A named tuple, so that torch's loader finds the tensors to pin in it."""

    batch: Batch | None
    """Collated samples on the CPU; None if none of them could be read."""
    skipped: tuple[str, ...] = ()
    """Reason for each sample that was skipped under ``--on-bad-sample skip``."""
