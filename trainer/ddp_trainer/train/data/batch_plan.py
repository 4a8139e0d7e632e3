"""Samples of a run: their assignment to global steps, batch slices and ranks, and the record of those used.

The assignment is pure arithmetic. Global step ``k`` of epoch ``e`` consumes ``order(e)[k*G : (k+1)*G]``. ``order`` is a
permutation that depends only on (seed, epoch), and ``G`` is the global batch. The batch is cut into ``V`` batch slices,
and every rank owns a contiguous range of slices. The number of ranks determines which rank computes a sample, but not
the step. A run may therefore change its world size between any two steps and still use every sample exactly once per
epoch.

:class:`StepBatches` returns the samples of each step and the part of this rank, computed for many steps in one pass.
Cutting a batch, hashing its ids and making its requests takes 50 us for one
step. A hundred steps in one pass take little more.

:class:`SampleTracker` is updated by every committed step and stored in every checkpoint. It therefore describes exactly
the history of the weights that it is stored with. Steps that a crash undid are in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ddp_trainer.train.data.keyed_rng import ALGORITHM, Stream, mix, mix_all, mix_on
from ddp_trainer.train.data.loaders.base import Request
from ddp_trainer.train.data.sample_order import BlockTable, block_order, sample_ids, step_positions
from ddp_trainer.train.utils.errors import BadConfig

DEFAULT_MAX_RANKS = 8
"""Number of ranks to leave room for if no launcher provides a maximum."""

_HASH_KEY = 0x73616D706C65
_HASH_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Batches of the whole run, identical on all ranks. Steps and epochs count from 0."""

    samples: int
    """Size of the training set."""
    global_batch: int
    batch_slices: int
    seed: int
    epochs: int
    max_steps: int | None = None
    sequential: bool = False
    """Samples are used in order, without shuffling, as those of a stream."""

    order: str = ALGORITHM
    """Algorithm of the shuffled order, see :mod:`ddp_trainer.train.data.sample_order`."""

    blocks: BlockTable | None = None
    """Blocks in which the samples are stored. Batch slices then read whole blocks, in a shuffled order."""

    endless: bool = False
    """The stream has no end, so the run has no epochs. ``samples`` is then the number that ``max_steps`` steps use."""

    steps_per_epoch: int = field(init=False)
    """Global steps in one epoch; the last may be partial."""
    total_steps: int = field(init=False)
    """Global steps in the run."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise BadConfig("The training set is empty.", hint="Give the task at least one sample.")
        steps = -(-self.samples // self.global_batch)
        planned = self.epochs * steps
        # Every step reads these several times, so compute them once.
        object.__setattr__(self, "steps_per_epoch", steps)
        object.__setattr__(self, "total_steps", planned if self.max_steps is None else min(planned, self.max_steps))

    def epoch_of(self, step: int) -> int:
        """Return the epoch of a global step; both count from 0."""
        return step // self.steps_per_epoch

    def is_epoch_end(self, step: int) -> bool:
        """Return True if the global step is the last of its epoch."""
        return not self.endless and (step + 1) % self.steps_per_epoch == 0

    def batch_length(self, step: int) -> int:
        """Return the number of samples in a global step; the last of an epoch may have fewer."""
        return min(self.global_batch, self.samples - step % self.steps_per_epoch * self.global_batch)

    def batch(self, step: int) -> Tensor:
        """Return the sample ids of a global step, in order: int64, shape ``(batch_length,)``."""
        return self.batches(range(step, step + 1))[0]

    def batches(self, steps: range) -> Tensor:
        """Return the sample ids of several consecutive steps: int64, shape ``(steps, batch_length)``.

        All steps must be in one epoch and have the same number of samples.
        """
        epoch, index = divmod(steps.start, self.steps_per_epoch)
        length = self.batch_length(steps.start)
        start = index * self.global_batch
        stop = start + len(steps) * length
        if self.blocks is not None:
            ids = block_order(self.blocks, self.seed, epoch).samples_at(self._positions(range(start, stop), length))
        else:
            taken = range(start, stop)
            ids = (
                torch.arange(start, stop)
                if self.sequential
                else sample_ids(taken, self.samples, self.seed, epoch, self.order)
            )
        return ids.view(len(steps), length)

    def _positions(self, taken: range, length: int) -> Tensor:
        """Return the positions in the order of blocks of the samples ``taken``, in steps of ``length`` samples."""
        if length < self.global_batch:
            return torch.arange(taken.start, taken.stop)
        steps = range(taken.start // length, taken.stop // length)
        sizes = shares(self.global_batch, self.batch_slices, self.batch_slices)
        return step_positions(sizes, self.samples // length, steps)

    def slice_runs(self, step: int, batch_slice: int) -> Iterator[tuple[int, int]]:
        """Yield the contiguous reads of a batch slice, of samples stored in blocks.

        Args:
            step: Global step at which the reads begin. They end with its epoch.
            batch_slice: Number of the batch slice.

        Yields:
            The first sample and the number of samples of a run of adjacent samples in one block.
        """
        assert self.blocks is not None  # noqa: S101 - only the feed for blocks reads runs
        epoch, index = divmod(step, self.steps_per_epoch)
        full = self.samples // self.global_batch
        span = cut(self.global_batch, self.batch_slices, batch_slice)
        rest = cut(self.samples % self.global_batch, self.batch_slices, batch_slice)
        first, size, end = span.start * full, span.stop - span.start, full * self.global_batch
        blocks = block_order(self.blocks, self.seed, epoch)
        yield from blocks.runs(range(first + index * size, first + full * size))
        yield from blocks.runs(range(end + rest.start, end + rest.stop))

    def num_equal_steps(self, step: int) -> int:
        """Return how many consecutive steps of the same length start at this step in its epoch; at least 1."""
        return max(1, self.samples // self.global_batch - step % self.steps_per_epoch)


def digest(ids: Tensor) -> int:
    """Return the sum of the 32-bit hashes of the ids.

    It distinguishes multisets of ids. The digests of the ranks add up to the digest of the whole batch.

    Args:
        ids: Ids of samples, int64, any shape.
    """
    return int(hashes(ids).sum())


def hashes(ids: Tensor) -> Tensor:
    """Return a 32-bit hash of each id, as int64 of the same shape.

    Args:
        ids: Ids of samples, int64, any shape.
    """
    return mix_all(ids, _HASH_KEY) & ((1 << _HASH_BITS) - 1)


def cut(length: int, parts: int, part: int) -> slice:
    """Return slice number ``part`` of ``parts`` contiguous slices of a sequence of ``length`` entries.

    The lengths of the slices differ by at most one; the longer ones come first.

    >>> [cut(8, 3, part) for part in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """
    size, longer = divmod(length, parts)
    start = part * size + min(part, longer)
    return slice(start, start + size + (part < longer))


def shares(global_batch: int, batch_slices: int, world_size: int) -> list[int]:
    """Return the number of samples of each rank in a full global step.

    >>> shares(32, 8, 3)
    [12, 12, 8]
    """
    sizes = [len(range(global_batch)[cut(global_batch, batch_slices, index)]) for index in range(batch_slices)]
    return [sum(sizes[cut(batch_slices, world_size, rank)]) for rank in range(world_size)]


def owned(batch_slices: int, world_size: int, rank: int) -> range:
    """Return the batch slices of a rank, a contiguous range.

    The numbers of slices of the ranks differ by at most one.

    Raises:
        BadConfig: There are more ranks than slices, so some ranks would have none.
    """
    if world_size > batch_slices:
        raise BadConfig(
            f"The world has {world_size} ranks, but a global batch is cut into {batch_slices} batch slices only.",
            hint=f"Run at most {batch_slices} ranks, or start a new run with "
            f"--batch-slices {power_of_two(world_size)} or more.",
        )
    own = cut(batch_slices, world_size, rank)
    return range(own.start, own.stop)


def choose_batch_slices(
    requested: int | None, *, promised_ranks: int | None, max_ranks: int | None, world_size: int, global_batch: int
) -> int:
    """Return the number of batch slices.

    This is ``requested`` if given. Otherwise it is the smallest power of two that gives every rank of the largest world
    a slice, but at most ``global_batch``.

    Args:
        requested: Number of slices that the user gave or that a checkpoint has, or None.
        promised_ranks: Largest number of ranks according to the platform. None leaves room for
            :data:`DEFAULT_MAX_RANKS`, so that later runs can resume from this one with more ranks.
        max_ranks: Largest number of ranks of the launcher's node range, or None.
        world_size: Current number of ranks.
        global_batch: Samples in a global batch.

    Raises:
        BadConfig: The global batch has fewer samples than the world has ranks.
    """
    if world_size > global_batch:
        raise BadConfig(
            f"A global batch of {global_batch} cannot feed {world_size} ranks.",
            hint=f"Give --global-batch {power_of_two(world_size)} or more, or run at most {global_batch} ranks.",
        )
    if requested is not None:
        return requested
    ranks = max(DEFAULT_MAX_RANKS if promised_ranks is None else promised_ranks, max_ranks or 0, world_size)
    return min(power_of_two(ranks), global_batch)


def power_of_two(least: int) -> int:
    """Return the smallest power of two that is at least ``least``.

    >>> power_of_two(5)
    8
    """
    return 1 << (least - 1).bit_length()


_SAMPLES_AT_ONCE: Final = 1 << 14
_STEPS_AT_ONCE: Final = 1 << 8
"""Limit of the steps in one pass, which bounds the pause between two steps for the computation."""


class StepPlan(NamedTuple):
    """One global step and the part of this rank."""

    step: int
    epoch: int
    ends_epoch: bool
    """The step is the last of its epoch."""
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
    seeds: Mapping[int, int]
    """Slice of this rank → seed of the model's random draws in it."""


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
    epoch, key = plan.epoch_of(first), mix(plan.seed, Stream.MODEL)
    return [
        StepPlan(
            step,
            epoch,
            plan.is_epoch_end(step),
            batch,
            length,
            digest,
            [Request(step, epoch, slice_index, parts[number]) for slice_index, parts in parts_of.items()],
            stop - start,
            own_digest,
            {slice_index: mix_on(key, step, slice_index) for slice_index in parts_of},
        )
        for number, (step, batch, digest, own_digest) in enumerate(
            zip(steps, ids.unbind(), digests, own_digests, strict=True)
        )
    ]


_UNCOUNTED_SAMPLES: Final = 4096
_NUM_BITS: Final = torch.tensor([byte.bit_count() for byte in range(256)])


class SampleTracker:
    """Counts of samples over the whole run, and the samples seen in the current epoch, with one bit for each."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._seen = torch.zeros(-(-samples // 8), dtype=torch.uint8)
        """Bit ``i % 8`` of byte ``i // 8`` is sample ``i``."""
        self._num_seen = 0
        self._unread: list[Tensor] = []
        """Sample ids of committed steps that are not counted yet. Counting many costs hardly more than counting one."""
        self._repeated = 0
        self.committed = 0
        """Samples in committed steps."""
        self.lost = 0
        """Samples that a finished epoch did not use."""
        self.skipped = 0
        """Committed samples that could not be read and had weight 0."""

    def commit(self, ids: Tensor, skipped: int = 0) -> None:
        """Record the samples of a committed step.

        Args:
            ids: Sample ids, int64, shape ``(n,)``.
            skipped: Number of these samples that could not be read.
        """
        self.skipped += skipped
        count = ids.numel()
        self.committed += count
        self._unread.append(ids)
        if len(self._unread) * count >= _UNCOUNTED_SAMPLES:
            self._count()

    def _count(self) -> None:
        """Record the ids of :attr:`_unread`, in time proportional to their number."""
        if not self._unread:
            return
        ids = torch.cat(self._unread)
        self._unread.clear()
        distinct = torch.unique(ids)
        places, bits = distinct >> 3, torch.bitwise_left_shift(1, distinct & 7).to(torch.uint8)
        is_new = (self._seen.index_select(0, places) & bits) == 0
        # Each of these bits occurs once and is not set, so adding it sets it.
        self._seen.index_add_(0, places, bits.mul_(is_new))
        new = int(is_new.sum())
        self._num_seen += new
        self._repeated += len(ids) - new

    @property
    def repeated(self) -> int:
        """Samples that were used again in the same epoch."""
        self._count()
        return self._repeated

    def close_epoch(self) -> None:
        """End the epoch, and count the samples that it did not use as lost."""
        self._count()
        self.lost += self._samples - self._num_seen
        self._num_seen = 0
        self._seen.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as tensors and numbers only, so that it loads with ``weights_only``.

        ``seen`` is a copy of the bitset: bit ``i % 8`` of byte ``i // 8`` is sample ``i``.
        """
        self._count()
        return {
            "samples": self._samples,
            "seen": self._seen.clone(),
            "committed": self.committed,
            "repeated": self._repeated,
            "lost": self.lost,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts from a checkpoint."""
        seen = state["seen"]
        # A stream without end is as long as the run, and the user may have made the run longer.
        self._samples = max(state["samples"], self._samples)
        self._seen = torch.zeros(-(-self._samples // 8), dtype=torch.uint8)
        self._seen[: len(seen)] = seen
        self._num_seen = int(torch.bincount(seen, minlength=len(_NUM_BITS)) @ _NUM_BITS)
        self.committed = state["committed"]
        self._unread.clear()
        self._repeated = state["repeated"]
        self.lost = state["lost"]
        self.skipped = state["skipped"]
