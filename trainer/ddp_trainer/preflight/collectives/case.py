"""One measurement, as an operation sees it: who I am, how many elements, of what, where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.preflight.collectives.exchange import Exchange
from ddp_trainer.preflight.collectives.fill_pattern import UNTOUCHED, Pattern

_CHUNK = 1 << 20
"""Elements that are compared at a time: the reference takes 8 bytes for each."""

Expectation = Callable[[int, int], Tensor]
"""From a range of elements to what they must be."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """How far a rank's result is from the reference."""

    rank: int
    element: int
    """The first wrong one."""
    expected: float
    got: float
    count: int
    """Wrong elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What an operation is given."""

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
        """Whether this rank is the one that broadcasts, scatters, gathers and reduces are about."""
        return self.rank == 0

    def filled(self, expectation: Expectation, pieces: int = 1) -> Tensor:
        """A buffer that holds the pattern; ``pieces`` times as long as a message."""
        buffer = torch.empty(self.count * pieces, dtype=self.dtype, device=self.device)
        for start in range(0, len(buffer), _CHUNK):
            stop = min(start + _CHUNK, len(buffer))
            buffer[start:stop] = expectation(start, stop).to(self.dtype)
        return buffer

    def empty(self, pieces: int = 1) -> Tensor:
        """A buffer in which no element has a value that could be right."""
        return torch.full((self.count * pieces,), UNTOUCHED, dtype=self.dtype, device=self.device)

    def own(self, start: int, stop: int) -> Tensor:
        """What this rank adds to a sum."""
        return self.pattern.addend(self.rank, start, stop)

    def sent(self, source: int, destination: int = 0) -> Expectation:
        """What one rank has for another."""
        return lambda start, stop: self.pattern.message(source, destination, start, stop)

    def in_pieces(self, of: Callable[[int], Expectation]) -> Expectation:
        """One message after another in one buffer: piece ``n`` is ``of(n)``."""

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
    """An operation with its buffers."""

    run: Callable[[], object]
    """What is timed; may be called many times."""
    result: Tensor | None = None
    """What this rank must have after the first :attr:`run`; None for a rank that receives nothing."""
    expected: Expectation | None = None
    trial: Callable[[], Tensor] | None = None
    """Called instead of the first :attr:`run` where that needs more than a call, and returns the result."""

    def check(self, rank: int) -> Wrong | None:
        """Run it once, and compare."""
        result = self.result
        if self.trial:
            result = self.trial()
        else:
            self.run()
        return compare(rank, result, self.expected) if result is not None and self.expected else None


def compare(rank: int, result: Tensor, expected: Expectation) -> Wrong | None:
    """Element by element, for equality; a NaN equals nothing."""
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
