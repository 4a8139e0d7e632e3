"""Samples of each step and the part of this rank, computed for many steps in one pass.

Everything follows from the batch plan. Cutting a batch, hashing its ids and making its requests takes 50 us for one
step. A hundred steps in one pass take little more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from torch import Tensor

from ddp_trainer.train.data.batch_plan import BatchPlan, cut, hashes
from ddp_trainer.train.data.loaders.base import Request

_SAMPLES_AT_ONCE: Final = 1 << 14
_STEPS_AT_ONCE: Final = 1 << 8
"""Limit of the steps in one pass, which bounds the pause between two steps for the computation."""


class StepPlan(NamedTuple):
    """One global step and the part of this rank."""

    step: int
    ids: Tensor
    """Ids of all samples of the step, as :meth:`ddp_trainer.train.data.batch_plan.BatchPlan.batch` returns them."""
    samples: int
    """Number of samples in the step."""
    digest: int
    """:func:`ddp_trainer.train.data.batch_plan.digest` of the ids."""
    own: Sequence[Request]
    """Requests for the slices of this rank that have samples, in order."""
    own_samples: int
    own_digest: int


class StepBatches:
    """Portions of one rank. Access in any order is possible; in the order of the steps it costs almost nothing."""

    def __init__(self, plan: BatchPlan, batch_slices: range) -> None:
        """``batch_slices`` are the batch slices that this rank owns."""
        self._plan = plan
        self._batch_slices = batch_slices
        self._first = 0
        self._ready: Sequence[StepPlan] = ()

    def of(self, step: int) -> StepPlan:
        """Return the portion of a global step."""
        index = step - self._first
        if not 0 <= index < len(self._ready):
            self._ready = precompute_batches(self._plan, self._batch_slices, step)
            self._first, index = step, 0
        return self._ready[index]

    def assign_slices(self, batch_slices: range) -> None:
        """Change the slices that this rank owns, and discard the precomputed portions."""
        self._batch_slices = batch_slices
        self._ready = ()


def precompute_batches(plan: BatchPlan, batch_slices: range, first: int) -> list[StepPlan]:
    """Return the portions of a step and of some following steps with the same number of samples."""
    length = plan.batch_length(first)
    steps = range(first, first + max(1, min(plan.num_equal_steps(first), _STEPS_AT_ONCE, _SAMPLES_AT_ONCE // length)))
    ids = plan.batches(steps)
    cuts = {slice_index: cut(length, plan.batch_slices, slice_index) for slice_index in batch_slices}
    # The slices of a rank are contiguous, and therefore its samples too.
    start, stop = cuts[batch_slices[0]].start, cuts[batch_slices[-1]].stop
    parts_of = {slice_index: ids[:, where].unbind() for slice_index, where in cuts.items() if where.start < where.stop}
    hashed = hashes(ids)
    digests, own_digests = hashed.sum(1).tolist(), hashed[:, start:stop].sum(1).tolist()
    epoch = plan.epoch_of(first)
    return [
        StepPlan(
            step,
            batch,
            length,
            digest,
            [Request(step, epoch, slice_index, parts[number]) for slice_index, parts in parts_of.items()],
            stop - start,
            own_digest,
        )
        for number, (step, batch, digest, own_digest) in enumerate(
            zip(steps, ids.unbind(), digests, own_digests, strict=True)
        )
    ]
