"""Order of the samples of an epoch: a permutation that depends only on (seed, epoch).

Small data sets are shuffled as a list (:func:`order`). For large ones, :func:`permute` computes the samples at some
positions alone, so neither memory nor time depends on the size of the data set. The algorithm is part of a run's
identity: a run keeps the one that its checkpoint names.

Of samples that are stored in blocks, the blocks are shuffled, and each batch slice reads its own ones.
:class:`BlockTable` names the blocks of a data set, and :func:`block_order` shuffles them for an epoch. Each batch slice
reads one contiguous part of the shuffled sequence, its lane (:func:`step_positions`). So a rank reads large pieces of
storage, nothing that belongs to another rank, and the order depends on neither ranks nor restarts. All is arithmetic on
the blocks; no list of samples is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from ddp_trainer.train.data.keyed_rng import ALGORITHM, hash_31_bits, mix, mix_all

COMPUTED: Final = "splitmix64/2"
"""Order of :func:`permute`."""
ORDERS: Final = frozenset({ALGORITHM, COMPUTED})
"""Orders that a run can resume with."""

_MOST_LISTED: Final = 1 << 20
"""Largest data set whose order is a list in new runs. Sorting it takes 0.1 s an epoch, and 8 MiB."""
_COMPUTED_AT_ONCE: Final = 1 << 14
_ORDER_KEY: Final = 0x6F72646572
_ROUNDS: Final = 6
_HASH_BITS: Final = 31
_SIGN: Final = 31


def order_of_new_run(samples: int) -> str:
    """Return the name of the order in which a new run uses this number of samples."""
    return COMPUTED if samples > _MOST_LISTED else ALGORITHM


def sample_ids(positions: range, samples: int, seed: int, epoch: int, algorithm: str) -> Tensor:
    """Return the samples at adjacent positions of an epoch: int64, shape ``(len(positions),)``, not to be changed."""
    if algorithm == COMPUTED:
        starts = range(positions.start // _COMPUTED_AT_ONCE * _COMPUTED_AT_ONCE, positions.stop, _COMPUTED_AT_ONCE)
        parts = [
            _computed_part(start, samples, seed, epoch)[max(positions.start - start, 0) : positions.stop - start]
            for start in starts
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    return order(samples, seed, epoch)[positions.start : positions.stop]


@lru_cache(maxsize=4)
def _computed_part(start: int, samples: int, seed: int, epoch: int) -> Tensor:
    """Return one part of a computed order: the loader and the vote of a step both need it."""
    positions = torch.arange(start, min(start + _COMPUTED_AT_ONCE, samples))
    return permute(positions, samples, mix(_ORDER_KEY, seed, epoch))


@lru_cache(maxsize=2)
def order(samples: int, seed: int, epoch: int) -> Tensor:
    """Return a permutation of ``range(samples)``, a pure function of its arguments: int64, shape ``(samples,)``.

    The permutation sorts mixed keys. torch's shuffle is not used because it may change between versions of torch.
    """
    keys = mix_all(torch.arange(samples), mix(_ORDER_KEY, seed, epoch))
    return torch.argsort(keys, stable=True)


def permute(numbers: Tensor, size: int, key: int) -> Tensor:
    """Return the images of numbers under a keyed permutation of ``range(size)``.

    A number is a place in a rectangle of at least ``size`` places, about a square. A Feistel network, whose halves are
    the two coordinates, permutes all places. A result beyond ``size`` is permuted again, which happens to about one in
    ``sqrt(size)``.

    Args:
        numbers: Numbers below ``size``: int64, shape ``(n,)``.
        size: Size of the range, at least 1.
        key: Selects the permutation.

    Returns:
        Numbers below ``size``: int64, shape ``(n,)``.

    Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 5.
    """
    rows = math.isqrt(size - 1) + 1
    sides = rows, -(-size // rows)
    shifts = _shifts(sides, key)
    images = _permute_places(numbers, sides, shifts)
    while (beyond := (images >= size).nonzero().squeeze(1)).numel():
        images[beyond] = _permute_places(images[beyond], sides, shifts)
    return images


@lru_cache(maxsize=2)
def _shifts(sides: tuple[int, int], key: int) -> tuple[Tensor, ...]:
    """Return by how much each round moves one half, for all values of the other: less the side, int32.

    A half has few values, about the square root of the data set's size: a look-up takes a quarter of the hash's time.
    """
    rounds = []
    for number in range(_ROUNDS):
        moved, fixed = sides[number % 2], sides[1 - number % 2]
        hashes = hash_31_bits(torch.arange(fixed), mix(key, number))
        rounds.append(((hashes * moved >> _HASH_BITS) - moved).int())
    return tuple(rounds)


def _permute_places(places: Tensor, sides: tuple[int, int], shifts: tuple[Tensor, ...]) -> Tensor:
    rows = places // sides[1]
    halves = [rows.int(), (places - rows * sides[1]).int()]
    for number, shift in enumerate(shifts):
        changed = number % 2
        moved = shift.index_select(0, halves[1 - changed]).add_(halves[changed])
        halves[changed] = moved.add_((moved >> _SIGN).bitwise_and_(sides[changed]))  # modulo the side
    return halves[0].long().mul_(sides[1]).add_(halves[1])


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
        return self._offsets(numbers) + positions

    def runs(self, positions: range) -> Iterator[tuple[int, int]]:
        """Yield the first sample and the number of samples of each block at adjacent positions."""
        at = positions.start
        number = torch.searchsorted(self.ends, at, right=True)
        while at < positions.stop:
            stop = min(int(self.ends[number]), positions.stop)
            yield int(self._offsets(number)) + at, stop - at
            at, number = stop, number + 1

    def _offsets(self, numbers: Tensor) -> Tensor:
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
    lengths = torch.tensor(sizes)
    lanes = (lengths.cumsum(0) - lengths) * full_steps
    within = torch.cat([torch.arange(size) for size in sizes])
    firsts, spans = torch.repeat_interleave(lanes, lengths) + within, torch.repeat_interleave(lengths, lengths)
    return firsts + torch.arange(steps.start, steps.stop).unsqueeze(1) * spans
