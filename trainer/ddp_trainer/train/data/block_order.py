"""Order of samples that are stored in blocks: blocks are shuffled, and each batch slice reads its own ones.

:class:`BlockTable` names the blocks of a data set, and :func:`block_order` arranges an epoch. Each batch slice reads
one contiguous part of the shuffled sequence of blocks, its lane. So a rank reads large pieces of storage, nothing that
belongs to another rank, and the order depends on neither ranks nor restarts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
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

    def number_of(self, ids: Tensor) -> Tensor:
        """Return the block of each sample, in the shape of ``ids``."""
        return torch.searchsorted(self.starts, ids, right=True) - 1

    def shuffled(self, seed: int, epoch: int) -> Tensor:
        """Return all samples, block by block, with the blocks in the order of the epoch: int64, ``(samples,)``."""
        lengths = torch.diff(self.starts, append=torch.tensor([self.samples]))
        keys = mix_all(torch.arange(len(self.starts)), mix(_BLOCK_KEY, seed, epoch))
        places = torch.argsort(keys, stable=True)
        lengths = lengths[places]
        shifts = self.starts[places] - (lengths.cumsum(0) - lengths)
        return torch.arange(self.samples) + torch.repeat_interleave(shifts, lengths)


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
def block_order(blocks: BlockTable, seed: int, epoch: int, sizes: tuple[int, ...]) -> Tensor:
    """Return the samples of an epoch, step by step, and in a step slice by slice: int64, shape ``(samples,)``.

    Args:
        blocks: Blocks of the data set.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        sizes: Samples of each batch slice of a full global step. The samples that make no full step come last.
    """
    sequence = blocks.shuffled(seed, epoch)
    steps = len(sequence) // sum(sizes)
    *lanes, rest = sequence.tensor_split([steps * end for end in accumulate(sizes)])
    full = torch.cat([lane.view(steps, size) for lane, size in zip(lanes, sizes, strict=True)], dim=1)
    return torch.cat([full.reshape(-1), rest])
