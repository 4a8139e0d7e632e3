"""What each step consumes and what this rank does of it, worked out for many steps at once.

All of it follows from the plan. But to cut a batch, hash its ids and name its requests takes 50 us where it is done
step by step, and little more for a hundred steps together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from torch import Tensor

from ddp_trainer.train.data.batch_plan import BatchPlan, cut, hashes
from ddp_trainer.train.data.loaders.request import Request

_SAMPLES_AT_ONCE: Final = 1 << 14
_STEPS_AT_ONCE: Final = 1 << 8
"""Bounds the pause between two steps in which the next ones are worked out."""


class Portion(NamedTuple):
    """One global step, and this rank's part of it."""

    step: int
    ids: Tensor
    """Of all its samples, as :meth:`ddp_trainer.train.data.batch_plan.BatchPlan.batch` gives them."""
    samples: int
    """How many they are."""
    digest: int
    """:func:`ddp_trainer.train.data.batch_plan.digest` of them."""
    own: Sequence[Request]
    """For each shard of this rank that has samples, in order."""
    own_samples: int
    own_digest: int


class StepBatches:
    """The portions of one rank, in any order; next to free in the order of the steps."""

    def __init__(self, plan: BatchPlan, shards: range) -> None:
        """``shards`` are those that this rank owns."""
        self._plan = plan
        self._shards = shards
        self._first = 0
        self._ready: Sequence[Portion] = ()

    def of(self, step: int) -> Portion:
        """The portion of a global step."""
        index = step - self._first
        if not 0 <= index < len(self._ready):
            self._ready = precompute_batches(self._plan, self._shards, step)
            self._first, index = step, 0
        return self._ready[index]

    def reassign(self, shards: range) -> None:
        """From here on this rank owns these shards."""
        self._shards = shards
        self._ready = ()


def precompute_batches(plan: BatchPlan, shards: range, first: int) -> list[Portion]:
    """The portions of this step, and of some that follow it with batches of the same length."""
    length = plan.batch_length(first)
    steps = range(first, first + max(1, min(plan.alike_from(first), _STEPS_AT_ONCE, _SAMPLES_AT_ONCE // length)))
    ids = plan.batches(steps)
    cuts = {shard: cut(length, plan.shards, shard) for shard in shards}
    # A rank's shards are contiguous, and so are its samples.
    start, stop = cuts[shards[0]].start, cuts[shards[-1]].stop
    parts_of = {shard: ids[:, where].unbind() for shard, where in cuts.items() if where.start < where.stop}
    hashed = hashes(ids)
    digests, own_digests = hashed.sum(1).tolist(), hashed[:, start:stop].sum(1).tolist()
    epoch = plan.epoch_of(first)
    return [
        Portion(
            step,
            batch,
            length,
            digest,
            [Request(step, epoch, shard, parts[number]) for shard, parts in parts_of.items()],
            stop - start,
            own_digest,
        )
        for number, (step, batch, digest, own_digest) in enumerate(
            zip(steps, ids.unbind(), digests, own_digests, strict=True)
        )
    ]
