"""Measurement of one operation at one size: :func:`measure` checks it once, then times it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

import torch
import torch.distributed as dist

from ddp_collectives.case import Call, Cell
from ddp_collectives.errors import CollectivesError, CommunicationFailed, first_line
from ddp_collectives.exchange import Exchange
from ddp_collectives.fill_pattern import Pattern
from ddp_collectives.operations import Operation
from ddp_collectives.rank import Rank
from ddp_collectives.result import Result, Seconds, Unsupported
from ddp_collectives.sizes import show

_ABSENT: Final = re.compile(
    r"not (?:yet )?(?:supported|implemented)|(?:does not|doesn't) support|unsupported|invalid scalar type",
    re.IGNORECASE,
)
"""Messages of torch for an operation that a backend does not support, before any communication."""


def measure(
    own: Rank, exchange: Exchange, name: str, operation: Operation, dtype: str, size_bytes: int
) -> Result | Unsupported | None:
    """Check and time one operation.

    Args:
        own: This rank.
        exchange: Exchange of results between the ranks.
        name: Name of the operation.
        operation: The operation.
        dtype: Name of a torch dtype.
        size_bytes: Size of the message in bytes.

    Returns:
        The result on rank 0, None on other ranks; on all ranks :class:`Unsupported` if the backend lacks the operation.

    Raises:
        CollectivesError: The buffers do not fit into memory.
        CommunicationFailed: A peer is lost.
    """
    cell = _cell(own, exchange, name, operation, dtype, size_bytes)
    shown_dtype = dtype if operation.has_size else ""
    what = f"{name} {dtype}" + (f" of {show(size_bytes)}" if operation.has_size else "")
    try:
        call = operation.prepare(cell)
    except (RuntimeError, MemoryError) as error:
        raise CollectivesError(
            f"{what} needs more memory than rank {cell.rank} has: {first_line(error)}; lower --sizes."
        ) from error
    try:
        wrong = call.check(cell.rank)
        times = _times(own, call)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = first_line(error)
        if _ABSENT.search(reason):
            return Unsupported(name, shown_dtype, reason)
        raise CommunicationFailed(f"{what} failed on rank {cell.rank}: {reason}.") from error
    topic = f"{name}/{dtype}/{size_bytes}"
    told = exchange.gather(topic, {"wrong": asdict(wrong) if wrong else None, "times": times})
    if told is None:
        return None
    moved = cell.count * cell.dtype.itemsize * (cell.world if operation.in_pieces else 1) if operation.has_size else 0
    wrongs = [each["wrong"] for each in told if each["wrong"]]
    seconds = Seconds.of(max_rank_times(told))
    return Result(
        operation=name,
        dtype=shown_dtype,
        size_bytes=moved,
        seconds=seconds,
        algorithm_bytes_per_second=moved / seconds.median,
        bus_bytes_per_second=moved / seconds.median * operation.bus_factor(cell.world),
        wrong=wrongs,
    )


def max_rank_times(told: Iterable[Mapping[str, Any]]) -> list[float]:
    """Return the time of the slowest rank for each repeat, when the collective was complete on all ranks.

    >>> max_rank_times([{"times": [1.0, 5.0]}, {"times": [2.0, 4.0]}])
    [2.0, 5.0]
    """
    return [max(repeat) for repeat in zip(*(each["times"] for each in told), strict=True)]


def _cell(own: Rank, exchange: Exchange, name: str, operation: Operation, dtype: str, size_bytes: int) -> Cell:
    world, kind = own.world, getattr(torch, dtype)
    parts = world if operation.in_pieces else 1
    return Cell(
        rank=own.rank,
        world=world,
        count=max(1, size_bytes // kind.itemsize // parts),
        dtype=kind,
        device=own.device,
        pattern=Pattern.of(world, kind, own.request.seed, name, dtype, size_bytes),
        exchange=exchange,
    )


def _times(own: Rank, call: Call) -> list[float]:
    for _ in range(own.request.warmup):
        call.run()
    times = []
    for _ in range(own.request.repeats):
        # Without a barrier, all other ranks would count the delay of a late rank.
        dist.barrier()
        times.append(own.timer(call.run))
    return times
