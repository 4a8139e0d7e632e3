"""Table of the collectives, each with its buffers, its call, its correct result and its factor of bandwidth.

Algorithm bandwidth is the size divided by the time. Bus bandwidth corrects it for the load of the busiest link, so that
it is comparable to the hardware for every number of ranks.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md, and src/sendrecv.cu there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

ELEMENT_BYTES: Final = 4
"""All messages are float32."""
VALUES: Final = 127
"""Number of message values, 0 to 126."""
UNTOUCHED: Final = 127
"""Value of elements that were not written."""
_CHUNK: Final = 1 << 20
"""Elements compared at a time. The reference takes 8 bytes per element."""

Expectation = Callable[[int, int], Tensor]
"""Returns the correct values of a range of elements, given by start and stop."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Elements of one measurement, each a function of a salt and its position, so that every rank can compute all.

    Values are small whole numbers, and their sums over up to 100,000 ranks are exact in float32, in every order of
    addition. Results are therefore compared for equality, and no tolerance hides an error.
    """

    salt: int
    """Makes the pattern differ from that of other measurements."""
    world: int

    def message(self, source: int, destination: int, start: int, stop: int) -> Tensor:
        """Return the elements that one rank sends to another, int64, shape ``(stop - start,)``."""
        return self._mixed(start, stop, 1 + source * self.world + destination) % VALUES

    def addends(self, rank: int, start: int, stop: int) -> Tensor:
        """Return a rank's addends of a sum, int64, shape ``(stop - start,)``."""
        return (self._mixed(start, stop, 0) + rank) % VALUES

    def total(self, start: int, stop: int) -> Tensor:
        """Return the sum of :meth:`addends` over all ranks, int64, shape ``(stop - start,)``.

        It uses a table of residues, so the cost per element does not depend on the number of ranks.
        """
        sums = ((torch.arange(VALUES)[:, None] + torch.arange(self.world)) % VALUES).sum(dim=1)
        return sums[self._mixed(start, stop, 0) % VALUES]

    def _mixed(self, start: int, stop: int, stream: int) -> Tensor:
        """Return pseudo-random whole numbers below 2**31; no intermediate result exceeds 2**63."""
        place = torch.arange(start, stop, dtype=torch.int64) + (self.salt ^ stream * 0x61C88647) % 2**29
        mixed = (place & 0x7FFFFFFF) * 2654435761
        mixed = ((mixed ^ (mixed >> 31)) & 0x7FFFFFFF) * 2246822519
        return (mixed ^ (mixed >> 29)) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Parameters of one measurement on this rank."""

    rank: int
    world: int
    count: int
    """Elements of the whole message, or of each rank's piece of it."""
    device: torch.device
    pattern: Pattern

    def filled(self, expected: Expectation, pieces: int = 1) -> Tensor:
        """Return a buffer filled with the pattern, shape ``(pieces * count,)``."""
        buffer = self.empty(pieces)
        for start in range(0, len(buffer), _CHUNK):
            stop = min(start + _CHUNK, len(buffer))
            buffer[start:stop] = expected(start, stop)
        return buffer

    def empty(self, pieces: int = 1) -> Tensor:
        """Return a buffer filled with :data:`UNTOUCHED`, which is never a correct value.

        Shape ``(pieces * count,)``.
        """
        return torch.full((self.count * pieces,), UNTOUCHED, dtype=torch.float32, device=self.device)

    def addends(self, start: int, stop: int) -> Tensor:
        """Return this rank's addends of a sum, int64."""
        return self.pattern.addends(self.rank, start, stop)

    def message(self, source: int, destination: int = 0) -> Expectation:
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


@dataclass(frozen=True, slots=True)
class Call:
    """Operation with its buffers."""

    run: Callable[[], object]
    """Timed call; may be repeated."""
    result: Tensor
    """Result buffer of the first :attr:`run`."""
    expected: Expectation


@dataclass(frozen=True, slots=True)
class Operation:
    """One collective."""

    prepare: Callable[[Case], Call]
    transfers: int = 0
    """Times that every element but a rank's own crosses the busiest link; 0 if the whole message crosses it once."""
    in_pieces: bool = False
    """True if the size is that of all ranks' pieces together."""

    def bus_factor(self, world: int) -> float:
        """Return the ratio of bus bandwidth to algorithm bandwidth for a number of ranks.

        >>> [OPERATIONS[name].bus_factor(4) for name in ("all_reduce", "all_gather", "broadcast")]
        [1.5, 0.75, 1.0]
        """
        return self.transfers * (world - 1) / world or 1.0


def _broadcast(case: Case) -> Call:
    expected = case.message(source=0)
    buffer = case.empty() if case.rank else case.filled(expected)
    return Call(lambda: dist.broadcast(buffer, 0), buffer, expected)


def _all_reduce(case: Case) -> Call:
    buffer = case.filled(case.addends)
    return Call(lambda: dist.all_reduce(buffer), buffer, case.pattern.total)


def _all_gather(case: Case) -> Call:
    message, output = case.filled(case.message(case.rank)), case.empty(case.world)
    return Call(lambda: _ALL_GATHER(output, message), output, case.in_pieces(case.message))


def _reduce_scatter(case: Case) -> Call:
    addends, output, offset = case.filled(case.addends, case.world), case.empty(), case.rank * case.count
    return Call(
        lambda: _REDUCE_SCATTER(output, addends),
        output,
        lambda start, stop: case.pattern.total(offset + start, offset + stop),
    )


def _all_to_all(case: Case) -> Call:
    messages = case.filled(case.in_pieces(lambda rank: case.message(case.rank, rank)), case.world)
    output = case.empty(case.world)
    return Call(
        lambda: dist.all_to_all_single(output, messages),
        output,
        case.in_pieces(lambda rank: case.message(rank, case.rank)),
    )


def _send_recv(case: Case) -> Call:
    after, before = (case.rank + 1) % case.world, (case.rank - 1) % case.world
    message, output = case.filled(case.message(case.rank, after)), case.empty()

    def run() -> None:
        # One batch: with NCCL, two consecutive calls would deadlock around the ring.
        both = [dist.P2POp(dist.isend, message, after), dist.P2POp(dist.irecv, output, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Call(run, output, case.message(before, case.rank))


def _first_available(*names: str) -> Any:
    """Return the first function that this torch has.

    torch 2.13 renames the ``*_tensor`` functions, and warns about the old names.
    """
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


_ALL_GATHER: Final = _first_available("all_gather_single", "all_gather_into_tensor")
_REDUCE_SCATTER: Final = _first_available("reduce_scatter_single", "reduce_scatter_tensor")

OPERATIONS: Final[Mapping[str, Operation]] = {
    "broadcast": Operation(_broadcast),
    "all_reduce": Operation(_all_reduce, transfers=2),
    "all_gather": Operation(_all_gather, transfers=1, in_pieces=True),
    "reduce_scatter": Operation(_reduce_scatter, transfers=1, in_pieces=True),
    "all_to_all": Operation(_all_to_all, transfers=1, in_pieces=True),
    "send_recv": Operation(_send_recv),
}


def find_difference(result: Tensor, expected: Expectation) -> str:
    """Compare all elements for equality; a NaN equals nothing.

    Args:
        result: Result of a collective, shape ``(n,)``.
        expected: Returns the elements that were expected, from an index up to another.

    Returns:
        First wrong element and their number; an empty text if all are right.
    """
    first, count = "", 0
    for start in range(0, len(result), _CHUNK):
        stop = min(start + _CHUNK, len(result))
        got, wanted = result[start:stop].cpu().double(), expected(start, stop).double()
        places = (got != wanted).nonzero()
        count += len(places)
        if not first and len(places):
            place = int(places[0])
            first = f"got {got[place]:g} for {wanted[place]:g} at element {start + place}"
    return f"{first}, {count} of {len(result)} elements are wrong" if first else ""
