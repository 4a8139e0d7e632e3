"""The worker of the measurement, with collectives that go wrong as broken hardware, drivers and builds do."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_collectives.case import Call, Cell
from ddp_collectives.operations import OPERATIONS
from ddp_collectives.worker import main


def flipped_bit(cell: Cell) -> Call:
    """One element of one rank is off by one."""
    call = OPERATIONS["all_reduce"].prepare(cell)

    def trial() -> Tensor:
        call.run()
        assert call.result is not None
        if cell.rank == 1 and len(call.result) > 1000:
            call.result[1000] += 1
        return call.result

    return replace(call, trial=trial)


def swapped_pieces(cell: Cell) -> Call:
    """Rank 0 has everybody's message, in another order."""
    call = OPERATIONS["all_gather"].prepare(cell)

    def trial() -> Tensor:
        call.run()
        assert call.result is not None
        return call.result.roll(cell.count) if cell.rank == 0 else call.result

    return replace(call, trial=trial)


def nothing_arrives(cell: Cell) -> Call:
    """The call returns, and the buffer is what it was."""
    call = OPERATIONS["broadcast"].prepare(cell)
    return replace(call, run=lambda: None)


def open_barrier(cell: Cell) -> Call:
    """Lets everybody through at once."""

    def trial() -> Tensor:
        cell.exchange.enter(str(cell.pattern.salt))
        return torch.tensor([cell.exchange.num_entered(str(cell.pattern.salt))])

    return replace(OPERATIONS["barrier"].prepare(cell), trial=trial)


def of_eight_bits(cell: Cell) -> Call:
    """In a dtype that gloo does not have."""
    buffer = torch.zeros(cell.count, dtype=torch.float8_e4m3fn)
    return Call(run=lambda: dist.reduce(buffer, 0))


FLAWED = {
    "all_reduce": flipped_bit,
    "all_gather": swapped_pieces,
    "broadcast": nothing_arrives,
    "barrier": open_barrier,
    "reduce": of_eight_bits,
}

if __name__ == "__main__":
    flawed = {name: replace(OPERATIONS[name], prepare=prepare) for name, prepare in FLAWED.items()}
    sys.exit(main(sys.argv[1:], OPERATIONS | flawed))
