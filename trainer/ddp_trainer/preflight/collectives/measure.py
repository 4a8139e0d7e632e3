"""Measurement of one operation at one size: :func:`measure` checks it once, then times it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
import torch.distributed as dist

from ddp_trainer.preflight.collectives.case import Call, Cell
from ddp_trainer.preflight.collectives.device import Timer
from ddp_trainer.preflight.collectives.errors import CollectivesError, CommunicationFailed, first_line
from ddp_trainer.preflight.collectives.exchange import Exchange
from ddp_trainer.preflight.collectives.fill_pattern import Pattern
from ddp_trainer.preflight.collectives.operations import Operation
from ddp_trainer.preflight.collectives.request import Request
from ddp_trainer.preflight.collectives.result import Result, Unsupported
from ddp_trainer.preflight.collectives.sizes import show

_ABSENT: Final = re.compile(
    r"not (?:yet )?(?:supported|implemented)|(?:does not|doesn't) support|unsupported|invalid scalar type",
    re.IGNORECASE,
)
"""Messages of torch for an operation that a backend does not support, before any communication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Parameters that all measurements of this rank share."""

    request: Request
    exchange: Exchange
    device: torch.device
    timer: Timer


def measure(bench: Bench, name: str, operation: Operation, dtype: str, size_bytes: int) -> Result | Unsupported | None:
    """Check and time one operation.

    Args:
        bench: Parameters of this rank.
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
    cell = _cell(bench, name, operation, dtype, size_bytes)
    what = f"{name} {dtype}" + (f" of {show(size_bytes)}" if operation.has_size else "")
    try:
        call = operation.prepare(cell)
    except (RuntimeError, MemoryError) as error:
        raise CollectivesError(
            f"{what} needs more memory than rank {cell.rank} has: {first_line(error)}; lower --sizes."
        ) from error
    try:
        wrong = call.check(cell.rank)
        times = _times(bench, call)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        reason = first_line(error)
        if _ABSENT.search(reason):
            return Unsupported(name, dtype if operation.has_size else "", reason)
        raise CommunicationFailed(f"{what} failed on rank {cell.rank}: {reason}.") from error
    topic = f"{name}/{dtype}/{size_bytes}"
    told = bench.exchange.gather(topic, {"wrong": asdict(wrong) if wrong else None, "times": times})
    if told is None:
        return None
    moved = cell.count * cell.dtype.itemsize * (cell.world if operation.in_pieces else 1) if operation.has_size else 0
    identity = name, dtype if operation.has_size else "", moved
    return Result.of(identity, slowest(told), operation.bus_factor(cell.world), wrongs(told))


def slowest(told: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the time of the slowest rank for each repeat, when the collective was complete on all ranks.

    >>> slowest([{"times": [1.0, 5.0]}, {"times": [2.0, 4.0]}])
    [2.0, 5.0]
    """
    return [max(repeat) for repeat in zip(*(each["times"] for each in told), strict=True)]


def wrongs(told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the differences of the ranks with a wrong result."""
    return [each["wrong"] for each in told if each["wrong"]]


def _cell(bench: Bench, name: str, operation: Operation, dtype: str, size_bytes: int) -> Cell:
    world, kind = bench.exchange.world, getattr(torch, dtype)
    parts = world if operation.in_pieces else 1
    return Cell(
        rank=bench.exchange.rank,
        world=world,
        count=max(1, size_bytes // kind.itemsize // parts),
        dtype=kind,
        device=bench.device,
        pattern=Pattern.of(world, kind, bench.request.seed, name, dtype, size_bytes),
        exchange=bench.exchange,
    )


def _times(bench: Bench, call: Call) -> list[float]:
    for _ in range(bench.request.warmup):
        call.run()
    return [_one(bench, call) for _ in range(bench.request.repeats)]


def _one(bench: Bench, call: Call) -> float:
    # Without a barrier, all other ranks would count the delay of a late rank.
    dist.barrier()
    return bench.timer(call.run)
