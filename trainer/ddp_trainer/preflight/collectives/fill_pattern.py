"""What each element of each message is: a function of a seed and of its place, so that every rank knows all of it.

Values are small whole numbers, exact in every dtype, and sums of them over all ranks are exact too, in whatever order
and tree they are added. So results are compared for equality and no tolerance can hide an error.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

VALUES = 127
"""Of a message: 0 to 126. It is prime and fits int8; 127 is left over to mean that nothing was written."""
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
"""Up to here every whole number is a value of the dtype."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The elements of one measurement."""

    salt: int
    world: int
    largest_sum: int
    """Of one element over all ranks."""

    @classmethod
    def of(cls, world: int, dtype: torch.dtype, *identity: object) -> Pattern:
        """``identity`` (seed, operation, size) makes it another pattern than that of any other measurement."""
        digest = hashlib.blake2b(repr(identity).encode(), digest_size=4).digest()
        return cls(int.from_bytes(digest) & 0x7FFFFFFF, world, _EXACT[dtype])

    def message(self, source: int, destination: int, start: int, stop: int) -> Tensor:
        """Elements that one rank has for another; int64."""
        return self._mixed(start, stop, 1 + source * self.world + destination) % VALUES

    def addend(self, rank: int, start: int, stop: int) -> Tensor:
        """What a rank adds to a sum; int64."""
        return self._worth()[(self._mixed(start, stop, 0) + rank) % self._residues]

    def total(self, start: int, stop: int) -> Tensor:
        """The sum of :meth:`addend` over all ranks; int64. By a table of residues: its cost does not grow with them."""
        worth, ranks = self._worth(), torch.arange(self.world)
        sums = torch.stack([worth[(ranks + residue) % self._residues].sum() for residue in range(self._residues)])
        return sums[self._mixed(start, stop, 0) % self._residues]

    @property
    def _residues(self) -> int:
        """With few ranks as many values as the sum has room for; with many, only every so manyth adds a 1."""
        share = self.largest_sum // self.world
        return min(share + 1, VALUES) if share else -(-self.world // self.largest_sum)

    def _worth(self) -> Tensor:
        if self.largest_sum >= self.world:
            return torch.arange(self._residues)
        return (torch.arange(self._residues) == 0).to(torch.int64)

    def _mixed(self, start: int, stop: int, stream: int) -> Tensor:
        """Whole numbers below 2**31 that look random; no intermediate passes 2**63."""
        place = torch.arange(start, stop, dtype=torch.int64) + (self.salt ^ stream * 0x61C88647) % 2**29
        mixed = (place & 0x7FFFFFFF) * 2654435761
        mixed = ((mixed ^ (mixed >> 31)) & 0x7FFFFFFF) * 2246822519
        return (mixed ^ (mixed >> 29)) & 0x7FFFFFFF
