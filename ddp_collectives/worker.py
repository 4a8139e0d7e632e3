"""One rank of the measurement: ``ddp-launch ... -m ddp_collectives.worker REQUEST``, with the request as JSON.

:func:`main` runs the requested operations, or pairs of nodes, and reports on rank 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist

from ddp_collectives.flags import PROGRAM, CollectivesError, MeasurementRequest, format_size
from ddp_collectives.operations import ELEMENT_BYTES, OPERATIONS, Case, Operation, Pattern, find_difference
from ddp_collectives.pairs import find_bad_nodes
from ddp_collectives.rank import Rank, first_line, join
from ddp_collectives.report import Result, header, to_json
from ddp_trainer.process.stdio import run_for_a_reader


def main(argv: Sequence[str], operations: Mapping[str, Operation] = OPERATIONS) -> int:
    """Measure and return the exit code.

    Args:
        argv: The request as JSON.
        operations: Table of operations; another one for a backend with others.
    """
    try:
        own = join(MeasurementRequest(**json.loads(argv[0])), os.environ)
        code, sentence = find_bad_nodes(own) if own.request.pairs else _measure_all(own, operations)
    except CollectivesError as error:
        code, sentence = error.exit_code, str(error)
    except RuntimeError as error:
        store = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        sentence = f"Rank {os.environ['RANK']} did not meet its peers at {store}, or lost them: {first_line(error)}."
        code = CollectivesError.exit_code
    if sentence:
        _record_error(sentence)
    return code


def _measure_all(own: Rank, operations: Mapping[str, Operation]) -> tuple[int, str]:
    """Return exit code and sentence, the same on all ranks."""
    request = own.request
    own.init_process_group("collectives/group", range(own.world), request.timeout)
    metadata = own.metadata(own.exchange_places())
    is_table = own.rank == 0 and request.output == "table"
    if is_table:
        print(header(metadata), flush=True)
    results = []
    for name in request.operations:
        if name == "send_recv" and own.world < 2:
            continue
        for size_bytes in request.sizes_for(own.backend):
            if result := _measure(own, name, operations[name], size_bytes):
                results.append(result)
                if is_table:
                    print(result.row(), flush=True)
    wrong = [sentence for result in results for sentence in result.wrong]
    if own.rank == 0 and not is_table:
        print(to_json("Collectives", metadata, results=[asdict(result) for result in results]), flush=True)
    for sentence in wrong:
        print(f"{PROGRAM}: {sentence}", file=sys.stderr)
    more = f"{len(wrong)} results are wrong, the first: " if len(wrong) > 1 else ""
    outcome = own.share_outcome((1, f"{more}{wrong[0]}") if wrong else (0, ""))
    dist.destroy_process_group()
    return outcome


def _measure(own: Rank, name: str, operation: Operation, size_bytes: int) -> Result | None:
    """Check one operation at one size, then time it. Returns the result on rank 0, None on other ranks.

    Raises:
        CollectivesError: A peer is lost, the backend lacks the operation, or the buffers do not fit into memory.
    """
    pieces = own.world if operation.in_pieces else 1
    case = Case(
        rank=own.rank,
        world=own.world,
        count=max(1, size_bytes // ELEMENT_BYTES // pieces),
        device=own.device,
        pattern=Pattern(zlib.crc32(f"{name} {size_bytes}".encode()) & 0x7FFFFFFF, own.world),
    )
    try:
        call = operation.prepare(case)
        call.run()
        wrong = find_difference(call.result, call.expected)
        times = own.time_calls(call.run)
    except (RuntimeError, ValueError, MemoryError, NotImplementedError) as error:
        what = f"{name} of {format_size(size_bytes)} failed on rank {own.rank}"
        raise CollectivesError(f"{what}: {first_line(error)}.") from error
    ranks = own.gather(f"{name}/{size_bytes}", {"rank": own.rank, "wrong": wrong, "times": times})
    moved_bytes = case.count * ELEMENT_BYTES * pieces
    return Result.create(name, moved_bytes, operation.bus_factor(own.world), ranks) if ranks else None


def _record_error(sentence: str) -> None:
    """Write the error to the launcher's error file of this worker, or to stderr without one."""
    reason = {"message": sentence.rstrip("."), "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
    try:
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": reason}))
    except (KeyError, OSError):
        print(f"{PROGRAM}: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(run_for_a_reader(lambda: main(sys.argv[1:]), PROGRAM))
