"""Random streams keyed by (seed, step, slice), and not by rank, process or clock.

A dropout mask therefore belongs to a batch slice of a global step. It is the same on any rank and in any repetition,
and no generator state has to be saved. :class:`KeyedRng` seeds the generators.

Keys and sample order come from SplitMix64, a hash of integers that is identical on every machine and in every version.
They must not change when torch or NumPy change their generators: a resumed run would repeat some samples and never see
others. So the trainer contains a published mixer.

Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with the constants
of S. Vigna's reference implementation.
"""

from __future__ import annotations

import random
import sys
from enum import IntEnum
from typing import Final

import torch
from torch import Tensor

ALGORITHM: Final = "splitmix64/1"
"""Stored in every checkpoint. A run resumes only if the same algorithm orders the samples."""

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class Stream(IntEnum):
    """Purpose of the random numbers."""

    WEIGHTS = 1
    """Initial weights; not keyed by step and slice."""
    FETCH = 2
    """Augmentation while samples are fetched."""
    MODEL = 3
    """Draws of the model in forward and backward, such as dropout."""
    SAMPLE = 4
    """Augmentation of one sample; keyed by epoch and sample instead of step and slice."""


_OF_USERS_CODE: Final = frozenset({Stream.WEIGHTS, Stream.FETCH, Stream.SAMPLE})
"""Streams in which user code may also draw from Python's and NumPy's generators. A forward pass uses torch's only."""
_NUMPY_SEEDS: Final = 0xFFFF_FFFF


class KeyedRng:
    """Seeds torch's default generators, and outside of the model also those of Python and NumPy."""

    def __init__(self, seed: int, device: torch.device) -> None:
        # Mixing proceeds from left to right, so mix the part that is the same in every step only once.
        self._begun = {stream: mix(seed, stream) for stream in Stream}
        self._cuda = device.type == "cuda"

    def enter(self, stream: Stream, step: int = 0, slice_index: int = 0) -> None:
        """Seed the generators for a stream.

        Args:
            stream: Purpose of the following draws.
            step: Global step, or the epoch for ``Stream.SAMPLE``.
            slice_index: Batch slice, or the sample id for ``Stream.SAMPLE``.
        """
        key = self._seed(mix_on(self._begun[stream], step, slice_index))
        if stream in _OF_USERS_CODE:
            random.seed(key)
            # torch imports NumPy if it is installed. If it is not imported, no code draws from it.
            if (numpy := sys.modules.get("numpy")) is not None:
                numpy.random.seed(key & _NUMPY_SEEDS)

    def go_on(self, key: int, *numbers: int) -> None:
        """Seed torch's generators for a substream of a model: ``key`` mixed with ``numbers``."""
        self._seed(mix_on(key, *numbers))

    def _seed(self, key: int) -> int:
        # torch.manual_seed() seeds every kind of accelerator and takes 140 us; this takes 1 us.
        torch.default_generator.manual_seed(key)
        if self._cuda:
            torch.cuda.manual_seed(key)
        return key


def mix(*numbers: int) -> int:
    """Return a 64-bit hash of ``numbers`` that depends on their order.

    >>> mix(0) == 0xE220A8397B1DCDAF
    True
    """
    return mix_on(0, *numbers)


def mix_on(state: int, *numbers: int) -> int:
    """Extend a result of :func:`mix` by more numbers.

    >>> mix_on(mix(1, 2), 3, 4) == mix(1, 2, 3, 4)
    True
    """
    for number in numbers:
        state = (state + number + _GAMMA) & _MASK
        state = ((state ^ (state >> 30)) * _FIRST) & _MASK
        state = ((state ^ (state >> 27)) * _SECOND) & _MASK
        state ^= state >> 31
    return state


def mix_all(numbers: Tensor, key: int) -> Tensor:
    """Return ``mix(key, n)`` for every ``n`` of an int64 tensor, as int64 with the bits of the unsigned result."""
    state = numbers + _to_int64((key + _GAMMA) & _MASK)
    state = (state ^ _shift(state, 30)) * _to_int64(_FIRST)
    state = (state ^ _shift(state, 27)) * _to_int64(_SECOND)
    return state ^ _shift(state, 31)


def hash_31_bits(numbers: Tensor, key: int) -> Tensor:
    """Return a keyed hash of each number, below 2^31 and as int64: a shorter mixer than :func:`mix_all`, and faster.

    Args:
        numbers: int64, any shape.
        key: Unsigned, at most 64 bits.
    """
    state = (numbers + _to_int64(key)).mul_(_to_int64(_FIRST))
    state.bitwise_xor_(_shift(state, 32)).mul_(_to_int64(_SECOND))
    return _shift(state, 33)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's ``>>`` is arithmetic."""
    return (state >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _to_int64(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
