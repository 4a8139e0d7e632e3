"""Test pattern of the messages: every element is a function of a seed and its position, so each rank can compute all.

Values are small whole numbers, exact in every dtype. Their sums over all ranks are exact in every order of addition.
Results are therefore compared for equality, and no tolerance hides an error.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

VALUES = 127
"""Number of message values, 0 to 126. It is prime and fits int8; 127 marks elements that were not written."""
UNTOUCHED = 127

_EXACT = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.int64: 2**31,
    torch.int32: 2**31 - 1,
    torch.uint8: 255,
    torch.int8: 127,
}
"""Limit up to which the dtype represents every whole number."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Elements of one measurement."""

    salt: int
    world: int
    largest_sum: int
    """Upper bound of one element's sum over all ranks."""

    @classmethod
    def of(cls, world: int, dtype: torch.dtype, *identity: object) -> Pattern:
        """Return the pattern of a measurement.

        Args:
            world: Number of ranks.
            dtype: Dtype of the elements.
            *identity: Seed, operation and size, which make the pattern differ from those of other measurements.
        """
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=4).digest()
        return cls(int.from_bytes(digest) & 0x7FFFFFFF, world, _EXACT[dtype])

    def message(self, source: int, destination: int, start: int, stop: int) -> Tensor:
        """Return the elements that one rank sends to another, int64, shape ``(stop - start,)``."""
        return self._mixed(start, stop, 1 + source * self.world + destination) % VALUES

    def reduce_input(self, rank: int, start: int, stop: int) -> Tensor:
        """Return a rank's addends of a sum, int64, shape ``(stop - start,)``."""
        return self._value_table()[(self._mixed(start, stop, 0) + rank) % self._modulus]

    def total(self, start: int, stop: int) -> Tensor:
        """Return the sum of :meth:`reduce_input` over all ranks, int64, shape ``(stop - start,)``.

        It uses a table of residues, so the cost per element does not depend on the number of ranks.
        """
        worth, ranks = self._value_table(), torch.arange(self.world)
        sums = torch.stack([worth[(ranks + residue) % self._modulus].sum() for residue in range(self._modulus)])
        return sums[self._mixed(start, stop, 0) % self._modulus]

    @property
    def _modulus(self) -> int:
        """Number of residues.

        With few ranks each is an addend, as far as the sum has room; with many, only residue 0 adds 1.
        """
        share = self.largest_sum // self.world
        return min(share + 1, VALUES) if share else -(-self.world // self.largest_sum)

    def _value_table(self) -> Tensor:
        if self.largest_sum >= self.world:
            return torch.arange(self._modulus)
        return (torch.arange(self._modulus) == 0).to(torch.int64)

    def _mixed(self, start: int, stop: int, stream: int) -> Tensor:
        """Return pseudo-random whole numbers below 2**31; no intermediate result exceeds 2**63."""
        place = torch.arange(start, stop, dtype=torch.int64) + (self.salt ^ stream * 0x61C88647) % 2**29
        mixed = (place & 0x7FFFFFFF) * 2654435761
        mixed = ((mixed ^ (mixed >> 31)) & 0x7FFFFFFF) * 2246822519
        return (mixed ^ (mixed >> 29)) & 0x7FFFFFFF
