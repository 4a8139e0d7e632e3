"""One rank of the measurement: ``ddp-launch ... -m ddp_trainer.preflight.collectives.worker``.

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
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp_trainer.preflight.collectives.comparison import Earlier
from ddp_trainer.preflight.collectives.errors import (
    INTERRUPTED,
    BadRequest,
    CollectivesError,
    CommunicationFailed,
    first_line,
)
from ddp_trainer.preflight.collectives.floors import read_floors
from ddp_trainer.preflight.collectives.reporter import Outcome
from ddp_trainer.preflight.collectives.request import OFF, Request, parse
from ddp_trainer.preflight.collectives.result import Result, Unsupported

if TYPE_CHECKING:
    import torch

    from ddp_trainer.preflight.collectives.device import Timer
    from ddp_trainer.preflight.collectives.exchange import Exchange
    from ddp_trainer.preflight.collectives.measure import Bench
    from ddp_trainer.preflight.collectives.operations import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of this process among the ranks, from torchrun's environment."""

    rank: int
    local_rank: int
    world: int
    local_world: int
    node: int
    """Number of this node."""
    master_address: str
    master_port: int
    agent_hosts_store: bool

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Place:
        """Read the position from the environment.

        Raises:
            BadRequest: The environment is not that of a launcher.
        """
        try:
            return cls(
                rank=int(environ["RANK"]),
                local_rank=int(environ["LOCAL_RANK"]),
                world=int(environ["WORLD_SIZE"]),
                local_world=int(environ["LOCAL_WORLD_SIZE"]),
                node=int(environ.get("GROUP_RANK", "0")),
                master_address=environ["MASTER_ADDR"],
                master_port=int(environ["MASTER_PORT"]),
                agent_hosts_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            )
        except (KeyError, ValueError) as error:
            raise BadRequest(
                f"The environment lacks what a launcher sets ({error}); start it with `ddp-launch collectives`."
            ) from None


def main(argv: Sequence[str], operations: Mapping[str, Operation] | None = None) -> int:
    """Measure and return an exit code of :mod:`errors`.

    Args:
        argv: Flags of :mod:`request`.
        operations: Replacement of the table of operations, for a backend with others.
    """
    try:
        request = parse(argv)
        place = Place.from_environ(os.environ)
        earlier = Earlier.read(request.compare) if request.compare and place.rank == 0 else None
        code, sentence = _measure(request, place, earlier, operations)
    except CollectivesError as error:
        code, sentence = error.exit_code, str(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # stdout is closed (EPIPE). Discard the output that Python writes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code, sentence = 1, "The reader of the results is gone."
    if sentence:
        _leave_word(sentence)
    return code


def _measure(
    request: Request, place: Place, earlier: Earlier | None, operations: Mapping[str, Operation] | None
) -> tuple[int, str]:
    """Return exit code and sentence, the same on all ranks."""
    # A wrong flag must fail before torch is imported, which takes a second.
    from ddp_trainer.preflight.collectives.device import choose, refuse_what_does_not_fit  # noqa: PLC0415
    from ddp_trainer.preflight.collectives.measure import Bench  # noqa: PLC0415
    from ddp_trainer.preflight.collectives.operations import OPERATIONS  # noqa: PLC0415

    own_floors = read_floors(request.floors) if request.has_own_floors else {}
    backend, device, timer = choose(request.backend, place.local_rank, place.local_world)
    if request.pairs:
        return _pair(request, place, backend, device, timer)
    refuse_what_does_not_fit(max(request.sizes_of(backend)), device, place.local_world)
    with _group(request, place, backend, device) as exchange:
        bench = Bench(request=request, exchange=exchange, device=device, timer=timer)
        places = exchange.gather("place", {"host": platform.node(), "device": str(device)})
        devices = exchange.gather("devices", _device(request, bench))
        outcome = Outcome(request, earlier, devices or (), own_floors)
        about = _about(request, backend, places or [])
        if places:
            outcome.begin(about)
        for result in _results(bench, backend, operations or OPERATIONS):
            if places:
                outcome.take(result)
        code, sentence = exchange.publish("outcome", outcome.finish(about) if places else None)
        exchange.meet("end")
    return code, sentence


def _device(request: Request, bench: Bench) -> Mapping[str, Any]:
    """Return name and speeds of this rank's device; no speeds if no floor applies."""
    from ddp_trainer.preflight.collectives.speeds import device_name, device_speeds  # noqa: PLC0415 - imports torch

    name = device_name(bench.device)
    is_measured = request.has_own_floors or (bench.device.type == "cuda" and request.floors != OFF)
    speeds = device_speeds(bench.device, bench.timer) if is_measured else None
    return {"name": name, "node": platform.node(), "speeds": asdict(speeds) if speeds else None}


def _pair(request: Request, place: Place, backend: str, device: torch.device, timer: Timer) -> tuple[int, str]:
    """Return exit code and sentence of ``--pairs``. Ranks that receive the outcome in time return the same code."""
    from ddp_trainer.preflight.collectives import pairs_report  # noqa: PLC0415
    from ddp_trainer.preflight.collectives.device import refuse_what_does_not_fit  # noqa: PLC0415
    from ddp_trainer.preflight.collectives.pairs import (  # noqa: PLC0415 - imports torch
        Rank,
        introduce,
        make_failures_raise,
        measure_pairs,
    )

    make_failures_raise()
    own = Rank(
        rank=place.rank,
        world=place.world,
        node=place.node,
        backend=backend,
        device=device,
        timer=timer,
        store=_store(request, place),
        request=request,
    )
    refuse_what_does_not_fit(own.size_bytes, device, place.local_world)
    places = introduce(own)
    names = {int(each["node"]): f"{each['node']} ({each['host']})" for each in places.values()}
    if len(names) < 2:
        raise BadRequest("--pairs needs two nodes or more, and all ranks are on one; leave it out.")
    if place.rank == 0 and request.output == "table":
        print(pairs_report.header(names, backend, own.size_bytes), flush=True)
    found = measure_pairs(own, places)
    if found is None:
        [code] = json.loads(own.store.get("pairs/outcome"))
        own.store.set(f"pairs/read/{place.rank}", "")
        return int(code), ""
    code, sentence = pairs_report.outcome(found, names, request.slow_share)
    about = _about(request, backend, [places[rank] for rank in sorted(places)])
    told = pairs_report.document(about, found, names, request.slow_share)
    print(
        told if request.output == "json" else "\n".join(pairs_report.rows(found, names, request.slow_share)), flush=True
    )
    own.store.set("pairs/outcome", json.dumps([code]))
    _wait_for_others(own.store, place.world)
    return code, sentence


def _wait_for_others(store: Any, world: int) -> None:
    """Wait for all ranks to read the outcome, for at most two seconds: this rank may host the store."""
    until = time.monotonic() + 2
    with suppress(RuntimeError):
        while not store.check([f"pairs/read/{rank}" for rank in range(1, world)]) and time.monotonic() < until:
            time.sleep(0.02)


def _results(bench: Bench, backend: str, operations: Mapping[str, Operation]) -> Iterator[Result | Unsupported]:
    """Yield all results on rank 0; on other ranks, which run the same calls, only unsupported operations."""
    from ddp_trainer.preflight.collectives.measure import measure  # noqa: PLC0415 - imports torch

    request, world = bench.request, bench.exchange.world
    for name in request.operations:
        operation = operations[name]
        if world < operation.least_ranks:
            yield Unsupported(name, "", f"needs {operation.least_ranks} ranks")
            continue
        for dtype in request.dtypes if operation.has_size else request.dtypes[:1]:
            for size_bytes in request.sizes_of(backend) if operation.has_size else (0,):
                result = measure(bench, name, operation, dtype, size_bytes)
                if result:
                    yield result
                if isinstance(result, Unsupported):
                    break


def _store(request: Request, place: Place) -> Any:
    """Return the store of all ranks. Raises CommunicationFailed if it is not reachable."""
    import torch.distributed as dist  # noqa: PLC0415

    try:
        return dist.TCPStore(  # type: ignore[attr-defined] # documented, but not in __all__
            place.master_address,
            place.master_port,
            place.world,
            is_master=place.rank == 0 and not place.agent_hosts_store,
            timeout=timedelta(seconds=request.timeout_seconds),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        raise CommunicationFailed(
            f"Rank {place.rank} could not meet its peers at {place.master_address}:{place.master_port}: "
            f"{first_line(error)}."
        ) from error


@contextmanager
def _group(request: Request, place: Place, backend: str, device: torch.device) -> Iterator[Exchange]:
    """Join the process group of all ranks and yield their exchange. Raises CommunicationFailed if they do not meet."""
    import torch.distributed as dist  # noqa: PLC0415

    from ddp_trainer.preflight.collectives.exchange import Exchange  # noqa: PLC0415

    timeout = timedelta(seconds=request.timeout_seconds)
    where = f"{place.master_address}:{place.master_port}"
    try:
        store = _store(request, place)
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("collectives/group", store),  # type: ignore[attr-defined] # as above
            rank=place.rank,
            world_size=place.world,
            timeout=timeout,
            # Otherwise NCCL derives a barrier's GPU from the global rank, which is wrong if nodes differ.
            device_id=device if device.type == "cuda" else None,
        )
    except RuntimeError as error:
        raise CommunicationFailed(
            f"Rank {place.rank} could not meet its peers at {where}: {first_line(error)}."
        ) from error
    try:
        yield Exchange(dist.PrefixStore("collectives/results", store), place.rank, place.world)  # type: ignore[attr-defined] # as above
        dist.destroy_process_group()
    except dist.DistError as error:
        raise CommunicationFailed(
            f"Rank {place.rank} lost its peers, whose store is {where}: {first_line(error)}."
        ) from error


def _about(request: Request, backend: str, places: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    import torch  # noqa: PLC0415

    return {
        "backend": backend,
        "torch": torch.__version__,
        "nccl": _nccl_version() if backend == "nccl" else None,
        "world_size": len(places),
        "ranks": [{"rank": rank, **place} for rank, place in enumerate(places)],
        "seed": request.seed,
        "repeats": request.repeats,
        "warmup": request.warmup,
        "unix_seconds": round(time.time()),
    }


def _nccl_version() -> str:
    from torch.cuda import nccl  # noqa: PLC0415 - imports torch

    return ".".join(map(str, nccl.version()))  # type: ignore[no-untyped-call] # of torch


def _leave_word(sentence: str) -> None:
    """Write the error to the launcher's error file of this worker, or to stderr without one."""
    reason = {"message": sentence.rstrip("."), "extraInfo": {"py_callstack": "", "timestamp": str(int(time.time()))}}
    try:
        Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": reason}))
    except (KeyError, OSError):
        print(f"ddp-launch collectives: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
