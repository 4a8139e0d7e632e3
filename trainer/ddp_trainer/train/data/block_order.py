"""Order of samples that are stored in blocks: blocks are shuffled, and each batch slice reads its own ones.

:class:`BlockTable` names the blocks of a data set, and :func:`block_order` shuffles them for an epoch. Each batch slice
reads one contiguous part of the shuffled sequence, its lane (:func:`step_positions`). So a rank reads large pieces of
storage, nothing that belongs to another rank, and the order depends on neither ranks nor restarts. All is arithmetic on
the blocks; no list of samples is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from ddp_trainer.train.data.keyed_rng import mix, mix_all

_BLOCK_KEY: Final = 0x626C6F636B


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """Blocks of a data set: ranges of adjacent samples that can be read together."""

    starts: Tensor
    """First sample of each block: int64, shape ``(blocks,)``, ascending from 0."""
    samples: int
    """Number of samples of the data set."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockOrder:
    """Sequence of all samples of an epoch, block by block."""

    starts: Tensor
    """First sample of each block, in the order of the epoch: int64, shape ``(blocks,)``."""
    ends: Tensor
    """Position after the last sample of each block: int64, shape ``(blocks,)``."""

    def samples_at(self, positions: Tensor) -> Tensor:
        """Return the samples at these positions of the sequence, int64 in the shape of ``positions``."""
        numbers = torch.searchsorted(self.ends, positions, right=True)
        return self._shifts(numbers) + positions

    def runs(self, positions: range) -> Iterator[tuple[int, int]]:
        """Yield the first sample and the number of samples of each block at adjacent positions."""
        at = positions.start
        number = torch.searchsorted(self.ends, at, right=True)
        while at < positions.stop:
            stop = min(int(self.ends[number]), positions.stop)
            yield int(self._shifts(number)) + at, stop - at
            at, number = stop, number + 1

    def _shifts(self, numbers: Tensor) -> Tensor:
        """Return the difference between a sample and its position, for the blocks of these numbers."""
        return self.starts[numbers] - torch.where(numbers > 0, self.ends[numbers - 1], 0)


def uniform_blocks(counts: Tensor, size: int) -> BlockTable:
    """Return blocks of at most ``size`` samples, none of which lies in two shards.

    Args:
        counts: Number of samples of each shard: int64, shape ``(shards,)``.
        size: Samples in a block.
    """
    blocks = (counts + size - 1) // size
    first = torch.repeat_interleave(counts.cumsum(0) - counts, blocks)
    within = torch.arange(int(blocks.sum())) - torch.repeat_interleave(blocks.cumsum(0) - blocks, blocks)
    return BlockTable(first + within * size, int(counts.sum()))


@lru_cache(maxsize=2)
def block_order(blocks: BlockTable, seed: int, epoch: int) -> BlockOrder:
    """Return the order of the blocks in an epoch, a pure function of its arguments."""
    lengths = torch.diff(blocks.starts, append=torch.tensor([blocks.samples]))
    keys = mix_all(torch.arange(len(blocks.starts)), mix(_BLOCK_KEY, seed, epoch))
    places = torch.argsort(keys, stable=True)
    return BlockOrder(blocks.starts[places], lengths[places].cumsum(0))


def step_positions(sizes: Sequence[int], full_steps: int, steps: range) -> Tensor:
    """Return the positions of the samples of full global steps: int64, shape ``(steps, sum(sizes))``.

    Args:
        sizes: Samples of each batch slice in a full global step.
        full_steps: Number of full global steps of an epoch.
        steps: Global steps, counted from the beginning of the epoch.
    """
    each = torch.tensor(sizes)
    lanes = (each.cumsum(0) - each) * full_steps
    within = torch.cat([torch.arange(size) for size in sizes])
    firsts, strides = torch.repeat_interleave(lanes, each) + within, torch.repeat_interleave(each, each)
    return firsts + torch.arange(steps.start, steps.stop).unsqueeze(1) * strides
