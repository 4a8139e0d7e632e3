"""Table of the collectives, each with its buffers, its call and its correct result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_collectives import bandwidth
from ddp_collectives.case import Call, Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective."""

    prepare: Callable[[Cell], Call]
    bus_factor: Callable[[int], float]
    """Returns the ratio of bus bandwidth to algorithm bandwidth for a number of ranks."""
    in_pieces: bool = False
    """True if the size is that of all ranks' pieces together."""
    has_size: bool = True
    least_ranks: int = 1


def _broadcast(cell: Cell) -> Call:
    expected = cell.sent(source=0)
    buffer = cell.create_buffer(expected) if cell.is_root else cell.empty()
    return Call(run=lambda: dist.broadcast(buffer, 0), result=buffer, expected=expected)


def _reduce(cell: Cell) -> Call:
    buffer = cell.create_buffer(cell.local_input)
    # The result of a reduce on other ranks is undefined.
    return Call(
        run=lambda: dist.reduce(buffer, 0), result=buffer if cell.is_root else None, expected=cell.pattern.total
    )


def _all_reduce(cell: Cell) -> Call:
    buffer = cell.create_buffer(cell.local_input)
    return Call(run=lambda: dist.all_reduce(buffer), result=buffer, expected=cell.pattern.total)


def _scatter(cell: Cell) -> Call:
    output, world = cell.empty(), range(cell.world)
    inputs = [cell.create_buffer(cell.sent(0, rank)) for rank in world] if cell.is_root else None
    return Call(run=lambda: dist.scatter(output, inputs, src=0), result=output, expected=cell.sent(0, cell.rank))


def _gather(cell: Cell) -> Call:
    message = cell.create_buffer(cell.sent(cell.rank))
    outputs = [cell.empty() for _ in range(cell.world)] if cell.is_root else None

    def checked_run() -> Tensor:
        dist.gather(message, outputs, dst=0)
        return torch.cat(outputs) if outputs else message[:0]

    return Call(run=lambda: dist.gather(message, outputs, dst=0), trial=checked_run, expected=cell.in_pieces(cell.sent))


def _all_gather(cell: Cell) -> Call:
    message, output = cell.create_buffer(cell.sent(cell.rank)), cell.empty(cell.world)
    return Call(run=lambda: _ALL_GATHER(output, message), result=output, expected=cell.in_pieces(cell.sent))


def _reduce_scatter(cell: Cell) -> Call:
    addends, output, offset = cell.create_buffer(cell.local_input, cell.world), cell.empty(), cell.rank * cell.count
    return Call(
        run=lambda: _REDUCE_SCATTER(output, addends),
        result=output,
        expected=lambda start, stop: cell.pattern.total(offset + start, offset + stop),
    )


def _all_to_all(cell: Cell) -> Call:
    messages = cell.create_buffer(cell.in_pieces(lambda rank: cell.sent(cell.rank, rank)), cell.world)
    output = cell.empty(cell.world)
    return Call(
        run=lambda: dist.all_to_all_single(output, messages),
        result=output,
        expected=cell.in_pieces(lambda rank: cell.sent(rank, cell.rank)),
    )


def _barrier(cell: Cell) -> Call:
    def checked_run() -> Tensor:
        """Check that no rank leaves before the last one, which enters late."""
        cell.exchange.enter(str(cell.pattern.salt))
        dist.barrier()
        return torch.tensor([cell.exchange.num_entered(str(cell.pattern.salt))])

    return Call(
        run=dist.barrier, trial=checked_run, expected=lambda start, stop: torch.full((stop - start,), cell.world)
    )


def _send_recv(cell: Cell) -> Call:
    after, before = (cell.rank + 1) % cell.world, (cell.rank - 1) % cell.world
    message, output = cell.create_buffer(cell.sent(cell.rank, after)), cell.empty()

    def run() -> None:
        # One batch: with NCCL, two consecutive calls would deadlock around the ring.
        both = [dist.P2POp(dist.isend, message, after), dist.P2POp(dist.irecv, output, before)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return Call(run=run, result=output, expected=cell.sent(before, cell.rank))


def _first_available(*names: str) -> Any:
    """Return the first function that this torch has. torch 2.13 renames the ``*_tensor`` functions, and warns about the
    old names.
    """
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


_ALL_GATHER: Final = _first_available("all_gather_single", "all_gather_into_tensor")
_REDUCE_SCATTER: Final = _first_available("reduce_scatter_single", "reduce_scatter_tensor")

OPERATIONS: Final[Mapping[str, Operation]] = {
    "broadcast": Operation(prepare=_broadcast, bus_factor=bandwidth.full_size),
    "reduce": Operation(prepare=_reduce, bus_factor=bandwidth.full_size),
    "all_reduce": Operation(prepare=_all_reduce, bus_factor=bandwidth.all_reduce_factor),
    "scatter": Operation(prepare=_scatter, bus_factor=bandwidth.all_gather_factor, in_pieces=True),
    "gather": Operation(prepare=_gather, bus_factor=bandwidth.all_gather_factor, in_pieces=True),
    "all_gather": Operation(prepare=_all_gather, bus_factor=bandwidth.all_gather_factor, in_pieces=True),
    "reduce_scatter": Operation(prepare=_reduce_scatter, bus_factor=bandwidth.all_gather_factor, in_pieces=True),
    "all_to_all": Operation(prepare=_all_to_all, bus_factor=bandwidth.all_gather_factor, in_pieces=True),
    "send_recv": Operation(prepare=_send_recv, bus_factor=bandwidth.full_size, least_ranks=2),
    "barrier": Operation(prepare=_barrier, bus_factor=bandwidth.full_size, has_size=False),
}
