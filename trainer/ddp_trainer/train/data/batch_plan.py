"""Which samples belong to which global step, shard and rank: pure arithmetic, and the heart of elastic exactness.

Global step ``k`` of epoch ``e`` consumes ``order(e)[k*G : (k+1)*G]`` where ``order`` is a permutation that depends on
(seed, epoch) alone and ``G`` is the global batch. The batch is cut into ``V`` logical shards, and every rank owns a
contiguous run of shards. How many ranks there are decides who computes a sample, never whether or when; so a run
may change its world size between any two steps and still see every sample exactly once per epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.splitmix import mix, mix_all

DEFAULT_MOST_RANKS = 8
"""Ranks to leave room for where no launcher tells how many there can be."""

_ORDER_KEY = 0x6F72646572
_HASH_KEY = 0x73616D706C65
_HASH_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The whole run as numbers, identical on all ranks."""

    samples: int
    """Size of the training set."""
    global_batch: int
    shards: int
    seed: int
    epochs: int
    max_steps: int | None = None
    sequential: bool = False
    """Samples are numbered in the order in which they come, as those of a stream are; none is shuffled."""

    endless: bool = False
    """The stream has no end, and so the run has no epochs; ``samples`` are those of ``max_steps``."""

    steps_per_epoch: int = field(init=False)
    """Global steps of one epoch; the last may be partial."""
    total_steps: int = field(init=False)
    """Global steps of the run."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise BadConfig("The training set is empty.", hint="Give the task at least one sample.")
        steps = -(-self.samples // self.global_batch)
        planned = self.epochs * steps
        # Asked for several times in every step, so worked out once.
        object.__setattr__(self, "steps_per_epoch", steps)
        object.__setattr__(self, "total_steps", planned if self.max_steps is None else min(planned, self.max_steps))

    def epoch_of(self, step: int) -> int:
        """Epoch, from 0, of a global step, from 0."""
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Whether the global step is the last of its epoch."""
        return not self.endless and (step + 1) % self.steps_per_epoch == 0

    def batch_length(self, step: int) -> int:
        """Samples of a global step; the last of an epoch may have fewer than the others."""
        return min(self.global_batch, self.samples - step % self.steps_per_epoch * self.global_batch)

    def batch(self, step: int) -> Tensor:
        """Sample ids, int64, that the global step must consume, in order."""
        return self.batches(range(step, step + 1))[0]

    def batches(self, steps: range) -> Tensor:
        """Those of several consecutive steps of one epoch, a row each; all of them must have the same length."""
        epoch, index = divmod(steps.start, self.steps_per_epoch)
        length = self.batch_length(steps.start)
        start = index * self.global_batch
        stop = start + len(steps) * length
        ids = torch.arange(start, stop) if self.sequential else order(self.samples, self.seed, epoch)[start:stop]
        return ids.view(len(steps), length)

    def alike_from(self, step: int) -> int:
        """How many steps of the same length there are in the epoch from this one on; at least 1."""
        return max(1, self.samples // self.global_batch - step % self.steps_per_epoch)

    def shard(self, step: int, shard: int) -> Tensor:
        """Sample ids of one logical shard; sizes differ by at most one, and may be 0 in a partial step."""
        batch = self.batch(step)
        return batch[cut(len(batch), self.shards, shard)]


@lru_cache(maxsize=2)
def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Permutation of ``range(samples)`` as int64, shape ``(samples,)``: a pure function of its arguments.

    Sorting mixed keys, not torch's own shuffle: that one may change between versions of torch.
    """
    keys = mix_all(torch.arange(samples), mix(_ORDER_KEY, seed, epoch))
    return torch.argsort(keys, stable=True)


def digest(ids: Tensor) -> int:
    """Sum of the ids' 32-bit hashes: tells multisets of ids apart, and adds up over ranks."""
    return int(hashes(ids).sum())


def hashes(ids: Tensor) -> Tensor:
    """A 32-bit hash of each id, as int64."""
    return mix_all(ids, _HASH_KEY) & ((1 << _HASH_BITS) - 1)


def cut(length: int, parts: int, part: int) -> slice:
    """Slice ``part`` of ``parts`` contiguous slices of a sequence; longer ones first, by at most one.

    >>> [cut(8, 3, part) for part in range(3)]
    [slice(0, 3, None), slice(3, 6, None), slice(6, 8, None)]
    """
    size, longer = divmod(length, parts)
    start = part * size + min(part, longer)
    return slice(start, start + size + (part < longer))


def shares(global_batch: int, shards: int, world_size: int) -> list[int]:
    """Samples of a full global step for each rank.

    >>> shares(32, 8, 3)
    [12, 12, 8]
    """
    sizes = [len(range(global_batch)[cut(global_batch, shards, shard)]) for shard in range(shards)]
    return [sum(sizes[cut(shards, world_size, rank)]) for rank in range(world_size)]


def owned(shards: int, world_size: int, rank: int) -> range:
    """Logical shards of a rank: contiguous, sizes differing by at most one.

    Raises:
        BadConfig: there are more ranks than shards, so some would have nothing to do.
    """
    if world_size > shards:
        raise BadConfig(
            f"The world has {world_size} ranks, but a global batch is cut into {shards} logical shards only.",
            hint=f"Run at most {shards} ranks, or start the run anew with --shards {power_of_two(world_size)} or more.",
        )
    own = cut(shards, world_size, rank)
    return range(own.start, own.stop)


def choose_shards(
    asked: int | None, *, promised_ranks: int | None, most_ranks: int | None, world_size: int, global_batch: int
) -> int:
    """Number of logical shards: what was asked, else a power of two that holds the largest world.

    That is the one which a platform promises; without a promise some room is left, for other runs to go on from this.

    Raises:
        BadConfig: the global batch has fewer samples than the world has ranks.
    """
    if world_size > global_batch:
        raise BadConfig(
            f"A global batch of {global_batch} cannot feed {world_size} ranks.",
            hint=f"Give --global-batch {power_of_two(world_size)} or more, or run at most {global_batch} ranks.",
        )
    if asked is not None:
        return asked
    ranks = max(DEFAULT_MOST_RANKS if promised_ranks is None else promised_ranks, most_ranks or 0, world_size)
    return min(power_of_two(ranks), global_batch)


def power_of_two(least: int) -> int:
    """Smallest power of two that is not below ``least``.

    >>> power_of_two(5)
    8
    """
    return 1 << (least - 1).bit_length()
