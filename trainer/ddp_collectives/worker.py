"""One rank of the measurement: ``ddp-launch ... -m ddp_collectives.worker``.

:func:`main` runs the requested operations, or pairs of nodes, and reports on rank 0.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.cuda import nccl

from ddp_collectives import errors, pairs, pairs_report
from ddp_collectives.comparison import BaselineRun
from ddp_collectives.device import check_free_memory
from ddp_collectives.device_benchmark import device_name, measure_throughput
from ddp_collectives.exchange import Exchange
from ddp_collectives.measure import measure
from ddp_collectives.operations import OPERATIONS, Operation
from ddp_collectives.rank import Rank, join
from ddp_collectives.reporter import ResultReporter
from ddp_collectives.request import OFF, parse
from ddp_collectives.result import Result, Unsupported
from ddp_collectives.thresholds import read_thresholds


def main(argv: Sequence[str], operations: Mapping[str, Operation] = OPERATIONS) -> int:
    """Measure and return an exit code of :mod:`errors`.

    Args:
        argv: Flags of :mod:`request`.
        operations: Table of operations; another one for a backend with others.
    """
    try:
        request = parse(argv)
        earlier = BaselineRun.read(request.compare) if request.compare and os.environ.get("RANK") == "0" else None
        own = join(request, os.environ)
        code, sentence = _pair(own) if request.pairs else _measure(own, earlier, operations)
    except errors.CollectivesError as error:
        code, sentence = error.exit_code, str(error)
    except KeyboardInterrupt:
        return errors.INTERRUPTED
    except BrokenPipeError:
        # stdout is closed (EPIPE). Discard the output that Python writes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code, sentence = 1, "The reader of the results is gone."
    if sentence:
        _record_error(sentence)
    return code


def _measure(own: Rank, earlier: BaselineRun | None, operations: Mapping[str, Operation]) -> tuple[int, str]:
    """Return exit code and sentence, the same on all ranks."""
    check_free_memory(max(own.request.sizes_of(own.backend)), own.device, own.local_world)
    own_floors = read_thresholds(own.request.floors) if own.request.has_threshold_file else {}
    with _group(own) as exchange:
        places = exchange.gather("place", {"host": platform.node(), "device": str(own.device)})
        devices = exchange.gather("devices", _device(own))
        outcome = ResultReporter(own.request, earlier, devices or (), own_floors)
        about = _run_metadata(own, places or [])
        if places:
            outcome.begin(about)
        for result in _results(own, exchange, operations):
            if places:
                outcome.take(result)
        code, sentence = exchange.publish("outcome", outcome.finish(about) if places else None)
        exchange.barrier("end")
    return code, sentence


def _device(own: Rank) -> Mapping[str, Any]:
    """Return name and speeds of this rank's device; no speeds if no floor applies."""
    is_measured = own.request.has_threshold_file or (own.device.type == "cuda" and own.request.floors != OFF)
    speeds = asdict(measure_throughput(own.device, own.timer)) if is_measured else None
    return {"name": device_name(own.device), "node": platform.node(), "speeds": speeds}


def _pair(own: Rank) -> tuple[int, str]:
    """Return exit code and sentence of ``--pairs``. Ranks that receive the outcome in time return the same code."""
    pairs.make_failures_raise()
    request, size_bytes = own.request, pairs.message_bytes(own)
    check_free_memory(size_bytes, own.device, own.local_world)
    places = pairs.exchange_rank_info(own)
    names = {int(each["node"]): f"{each['node']} ({each['host']})" for each in places.values()}
    if len(names) < 2:
        raise errors.BadRequest("--pairs needs two nodes or more, and all ranks are on one; leave it out.")
    if own.rank == 0 and request.output == "table":
        print(pairs_report.header(names, own.backend, size_bytes), flush=True)
    found = pairs.measure_pairs(own, places)
    if found is None:
        code = int(own.store.get("pairs/outcome"))
        own.store.set(f"pairs/read/{own.rank}", "")
        return code, ""
    code, sentence = pairs_report.outcome(found, names, request.slow_share)
    if request.output == "json":
        about = _run_metadata(own, [places[rank] for rank in sorted(places)])
        print(pairs_report.pairings_to_json(about, found, names, request.slow_share), flush=True)
    else:
        print("\n".join(pairs_report.rows(found, names, request.slow_share)), flush=True)
    own.store.set("pairs/outcome", str(code))
    _wait_for_ranks(own.store, own.world)
    return code, sentence


def _wait_for_ranks(store: Any, world: int) -> None:
    """Wait for all ranks to read the outcome, for at most two seconds: this rank may host the store."""
    until = time.monotonic() + 2
    with suppress(RuntimeError):
        while not store.check([f"pairs/read/{rank}" for rank in range(1, world)]) and time.monotonic() < until:
            time.sleep(0.02)


def _results(own: Rank, exchange: Exchange, operations: Mapping[str, Operation]) -> Iterator[Result | Unsupported]:
    """Yield all results on rank 0; on other ranks, which run the same calls, only unsupported operations."""
    request = own.request
    for name in request.operations:
        operation = operations[name]
        if own.world < operation.least_ranks:
            yield Unsupported(name, "", f"needs {operation.least_ranks} ranks")
            continue
        for dtype in request.dtypes if operation.has_size else request.dtypes[:1]:
            for size_bytes in request.sizes_of(own.backend) if operation.has_size else (0,):
                result = measure(own, exchange, name, operation, dtype, size_bytes)
                if result:
                    yield result
                if isinstance(result, Unsupported):
                    break


@contextmanager
def _group(own: Rank) -> Iterator[Exchange]:
    """Join the process group of all ranks and yield their exchange. Raises CommunicationFailed if they do not meet."""
    try:
        own.init_process_group("collectives/group", range(own.world), own.request.timeout_seconds)
    except RuntimeError as error:
        raise errors.CommunicationFailed(
            f"Rank {own.rank} could not meet its peers at {own.store_address}: {errors.first_line(error)}."
        ) from error
    try:
        yield Exchange(dist.PrefixStore("collectives/results", own.store), own.rank, own.world)  # type: ignore[attr-defined] # documented, but not in __all__
        dist.destroy_process_group()
    except dist.DistError as error:
        raise errors.CommunicationFailed(
            f"Rank {own.rank} lost its peers, whose store is {own.store_address}: {errors.first_line(error)}."
        ) from error


def _run_metadata(own: Rank, places: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "backend": own.backend,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl.version())) if own.backend == "nccl" else None,  # type: ignore[no-untyped-call] # of torch
        "world_size": len(places),
        "ranks": [{"rank": rank, **place} for rank, place in enumerate(places)],
        "seed": own.request.seed,
        "repeats": own.request.repeats,
        "warmup": own.request.warmup,
        "unix_seconds": round(time.time()),
    }


def _record_error(sentence: str) -> None:
    """Write the error to the launcher's error file of this worker, or to stderr without one."""
    reason = {"message": sentence.rstrip("."), "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
    try:
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": reason}))
    except (KeyError, OSError):
        print(f"ddp-launch collectives: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
