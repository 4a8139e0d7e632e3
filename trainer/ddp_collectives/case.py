"""Input and buffers of one measurement: :class:`Cell` describes it, :class:`Call` runs and checks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_collectives.exchange import Exchange
from ddp_collectives.fill_pattern import UNTOUCHED, Pattern

_CHUNK = 1 << 20
"""Elements compared at a time. The reference takes 8 bytes per element."""

Expectation = Callable[[int, int], Tensor]
"""Returns the correct values of a range of elements, given by start and stop."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """Difference between a rank's result and the reference."""

    rank: int
    element: int
    """Index of the first wrong element."""
    expected: float
    got: float
    count: int
    """Number of wrong elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Parameters of one measurement on this rank."""

    rank: int
    world: int
    count: int
    """Elements of the whole message, or of each rank's piece of it."""
    dtype: torch.dtype
    device: torch.device
    pattern: Pattern
    exchange: Exchange

    @property
    def is_root(self) -> bool:
        """True on the root of broadcast, scatter, gather and reduce: rank 0."""
        return self.rank == 0

    def create_buffer(self, expectation: Expectation, pieces: int = 1) -> Tensor:
        """Return a buffer filled with the pattern, shape ``(pieces * count,)``."""
        buffer = torch.empty(self.count * pieces, dtype=self.dtype, device=self.device)
        for start in range(0, len(buffer), _CHUNK):
            stop = min(start + _CHUNK, len(buffer))
            buffer[start:stop] = expectation(start, stop).to(self.dtype)
        return buffer

    def empty(self, pieces: int = 1) -> Tensor:
        """Return a buffer filled with :data:`UNTOUCHED`, which is never a correct value.

        Shape ``(pieces * count,)``.
        """
        return torch.full((self.count * pieces,), UNTOUCHED, dtype=self.dtype, device=self.device)

    def local_input(self, start: int, stop: int) -> Tensor:
        """Return this rank's addends of a sum, int64."""
        return self.pattern.reduce_input(self.rank, start, stop)

    def sent(self, source: int, destination: int = 0) -> Expectation:
        """Return the expectation of the message from one rank to another."""
        return lambda start, stop: self.pattern.message(source, destination, start, stop)

    def in_pieces(self, of: Callable[[int], Expectation]) -> Expectation:
        """Return the expectation of consecutive messages in one buffer, in which piece ``n`` is ``of(n)``."""

        def elements(start: int, stop: int) -> Tensor:
            parts = []
            while start < stop:
                piece, offset = divmod(start, self.count)
                length = min(stop - start, self.count - offset)
                parts.append(of(piece)(offset, offset + length))
                start += length
            return torch.cat(parts)

        return elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Operation with its buffers."""

    run: Callable[[], object]
    """Timed call; may be repeated."""
    result: Tensor | None = None
    """Result buffer of the first :attr:`run`; None on a rank that receives nothing."""
    expected: Expectation | None = None
    trial: Callable[[], Tensor] | None = None
    """Replaces the first :attr:`run` if that needs more than the call, and returns the result."""

    def check(self, rank: int) -> Wrong | None:
        """Run the operation once and compare its result.

        Returns:
            The difference; None if the result is correct or this rank receives nothing.
        """
        result = self.result
        if self.trial:
            result = self.trial()
        else:
            self.run()
        return compare(rank, result, self.expected) if result is not None and self.expected else None


def compare(rank: int, result: Tensor, expected: Expectation) -> Wrong | None:
    """Compare all elements for equality; a NaN equals nothing.

    Args:
        rank: Rank that has the result.
        result: Result of a collective, shape ``(n,)``.
        expected: Returns the elements that were expected, from an index up to another.

    Returns:
        First wrong element and their number; None if all are right.
    """
    first: tuple[int, float, float] | None = None
    count = 0
    for start in range(0, len(result), _CHUNK):
        stop = min(start + _CHUNK, len(result))
        got, wanted = result[start:stop].cpu().double(), expected(start, stop).double()
        places = (got != wanted).nonzero()
        count += len(places)
        if first is None and len(places):
            place = int(places[0])
            first = start + place, float(wanted[place]), float(got[place])
    return Wrong(rank, *first, count) if first else None
