"""The worker of the measurement, with collectives that go wrong as broken hardware, drivers and builds do."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from ddp_collectives.operations import OPERATIONS, Call, Case
from ddp_collectives.worker import main


def flipped_bit(case: Case) -> Call:
    """One element of one rank is off by one."""
    call = OPERATIONS["all_reduce"].prepare(case)

    def run() -> None:
        call.run()
        if case.rank == 1 and len(call.result) > 1000:
            call.result[1000] += 1

    return replace(call, run=run)


def swapped_pieces(case: Case) -> Call:
    """Rank 0 receives all messages in another order."""
    call = OPERATIONS["all_gather"].prepare(case)

    def run() -> None:
        call.run()
        if case.rank == 0:
            call.result.copy_(call.result.roll(case.count))

    return replace(call, run=run)


def nothing_arrives(case: Case) -> Call:
    """The call returns, and the buffer is what it was."""
    return replace(OPERATIONS["broadcast"].prepare(case), run=lambda: None)


def of_eight_bits(case: Case) -> Call:
    """A dtype that gloo does not have."""
    buffer = torch.zeros(case.count, dtype=torch.float8_e4m3fn)
    return Call(lambda: dist.all_reduce(buffer), buffer, case.pattern.total)


FLAWED = {
    "all_reduce": flipped_bit,
    "all_gather": swapped_pieces,
    "broadcast": nothing_arrives,
    "reduce_scatter": of_eight_bits,
}

if __name__ == "__main__":
    flawed = {name: replace(OPERATIONS[name], prepare=prepare) for name, prepare in FLAWED.items()}
    sys.exit(main(sys.argv[1:], OPERATIONS | flawed))
