"""Order of the samples of an epoch: a permutation that depends only on (seed, epoch).

Small data sets are shuffled as a list (:func:`order`). For large ones, :func:`permute` computes the samples at some
positions alone, so neither memory nor time depends on the size of the data set. The algorithm is part of a run's
identity: a run keeps the one that its checkpoint names.
"""

from __future__ import annotations

import math
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
_SIGN: Final = 63


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
    keys = [mix(key, number) for number in range(_ROUNDS)]
    images = _permute_places(numbers, sides, keys)
    while (beyond := (images >= size).nonzero().squeeze(1)).numel():
        images[beyond] = _permute_places(images[beyond], sides, keys)
    return images


def _permute_places(places: Tensor, sides: tuple[int, int], keys: list[int]) -> Tensor:
    rows = places // sides[1]
    halves = [rows, places - rows * sides[1]]
    for number, key in enumerate(keys):
        changed, side = number % 2, sides[number % 2]
        moved = hash_31_bits(halves[1 - changed], key).mul_(side).__irshift__(_HASH_BITS).add_(halves[changed])
        moved.sub_(side)  # modulo `side`: a division takes ten times as long
        halves[changed] = moved.add_((moved >> _SIGN).bitwise_and_(side))
    return halves[0] * sides[1] + halves[1]
