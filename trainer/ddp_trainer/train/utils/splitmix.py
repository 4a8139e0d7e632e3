"""SplitMix64 hash of integers, identical on every machine and in every version.

Sample order and random streams must not change when torch or NumPy change their generators: a resumed run would repeat
some samples and never see others. So the trainer contains a published mixer.

Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014, with the constants
of S. Vigna's reference implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torch import Tensor

ALGORITHM: Final = "splitmix64/1"
"""Stored in every checkpoint. A run resumes only if the same algorithm orders the samples."""

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


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


def _shift(state: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's ``>>`` is arithmetic."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _to_int64(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
