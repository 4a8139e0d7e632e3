"""This process among the ranks of a measurement: its device, its timer, and the store, which is not under test."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from ddp_collectives.flags import BadRequest, CollectivesError, MeasurementRequest

POLL_SECONDS: Final = 0.02
_FAREWELL_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """This process in the measurement."""

    request: MeasurementRequest
    rank: int
    world: int
    node: int
    """Number of this node."""
    backend: str
    device: torch.device
    store: Any
    """torch's store."""

    def init_process_group(self, topic: str, members: Sequence[int], timeout_seconds: float) -> None:
        """Join the process group of some ranks, which meet under a topic of the store. Raises RuntimeError."""
        dist.init_process_group(
            self.backend,
            store=dist.PrefixStore(topic, self.store),  # type: ignore[attr-defined] # documented, but not in __all__
            rank=members.index(self.rank),
            world_size=len(members),
            timeout=timedelta(seconds=timeout_seconds),
            # Otherwise NCCL derives a barrier's GPU from the global rank, which is wrong if nodes differ.
            device_id=self.device if self.device.type == "cuda" else None,
        )

    def time_calls(self, run: Callable[[], object]) -> list[float]:
        """Return the seconds of each timed call, after the calls of the warm-up.

        On a GPU, events in the stream that waits for the call measure it, so launch overhead does not count.
        """
        times = []
        for _ in range(self.request.warmup + self.request.repeats):
            # Without a barrier, all other ranks would count the delay of a late rank.
            dist.barrier()
            if self.device.type == "cuda":
                began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # of torch
                began.record()
                run()
                ended.record()
                ended.synchronize()
                times.append(float(began.elapsed_time(ended)) / 1000)
            else:
                start = time.perf_counter()
                run()
                times.append(time.perf_counter() - start)
        return times[self.request.warmup :]

    def gather(self, topic: str, value: Any) -> list[Any] | None:
        """Return the JSON values of all ranks on rank 0. Other ranks return None without waiting."""
        self.store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank:
            return None
        return [json.loads(self.store.get(f"{topic}/{rank}")) for rank in range(self.world)]

    def read(self, key: str, until: float) -> Any:
        """Return the JSON value of a key of the store; None if it is not set in time.

        It polls, because torch's store prints four lines to stderr for every wait that times out.
        """
        with suppress(RuntimeError):
            while not self.store.check([key]):
                if time.monotonic() >= until:
                    return None
                time.sleep(POLL_SECONDS)
            return json.loads(self.store.get(key))
        return None

    def share_outcome(self, outcome: tuple[int, str]) -> tuple[int, str]:
        """Return the outcome of rank 0 on every rank: exit code and sentence.

        Rank 0 waits for the others to read it, for at most two seconds, since its process may host the store.
        """
        if self.rank:
            code, sentence = json.loads(self.store.get("outcome"))
            self.store.set(f"outcome/read/{self.rank}", "0")
            return code, sentence
        self.store.set("outcome", json.dumps(outcome))
        until = time.monotonic() + _FAREWELL_SECONDS
        for rank in range(1, self.world):
            self.read(f"outcome/read/{rank}", until)
        return outcome

    def exchange_places(self) -> list[Mapping[str, Any]]:
        """Return node, host and device of each rank. Raises CollectivesError if some do not come."""
        place = {"rank": self.rank, "node": self.node, "host": platform.node(), "device": str(self.device)}
        self.store.set(f"place/{self.rank}", json.dumps(place))
        until = time.monotonic() + self.request.timeout
        places = [self.read(f"place/{rank}", until) for rank in range(self.world)]
        if missing := [str(rank) for rank, place in enumerate(places) if place is None]:
            raise CollectivesError(f"Ranks {', '.join(missing)} did not come within {self.request.timeout} s.")
        return places

    def metadata(self, places: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of the JSON output that describe the run."""
        return {
            "backend": self.backend,
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())) if self.backend == "nccl" else None,  # type: ignore[no-untyped-call] # of torch
            "world_size": self.world,
            "ranks": places,
            "repeats": self.request.repeats,
            "warmup": self.request.warmup,
            "unix_seconds": round(time.time()),
        }


def join(request: MeasurementRequest, environ: Mapping[str, str]) -> Rank:
    """Choose the device of this rank and connect to the store of all ranks.

    Raises:
        BadRequest: The device is not available.
        RuntimeError: The store is not reachable.
    """
    rank, world, port = (int(environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    backend, device = choose_device(request.backend, int(environ["LOCAL_RANK"]), int(environ["LOCAL_WORLD_SIZE"]))
    store = dist.TCPStore(  # type: ignore[attr-defined] # documented, but not in __all__
        environ["MASTER_ADDR"],
        port,
        world,
        is_master=rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        timeout=timedelta(seconds=request.timeout),
        wait_for_workers=False,
    )
    node = int(environ.get("GROUP_RANK", "0"))
    return Rank(request=request, rank=rank, world=world, node=node, backend=backend, device=device, store=store)


def choose_device(backend: str, local_rank: int, local_world: int) -> tuple[str, torch.device]:
    """Return backend and device of a rank. Raises BadRequest if the device is not available."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "gloo" or (backend == "auto" and not (gpus and dist.is_nccl_available())):
        return "gloo", torch.device("cpu")
    # Not local_world: a worker that sees only its own GPU has local rank 0.
    if local_rank >= gpus:
        raise BadRequest(
            f"--backend nccl: {local_world} ranks on this node and {gpus} GPUs that torch can use; lower "
            "--nproc-per-node, or use --backend gloo."
        )
    torch.cuda.set_device(local_rank)
    return "nccl", torch.device("cuda", local_rank)


def first_line(error: Exception) -> str:
    r"""Return torch's message without the stack that it appends.

    >>> first_line(RuntimeError("Connection closed by peer.\nException raised from ..."))
    'Connection closed by peer'
    """
    return str(error).strip().partition("\n")[0].rstrip(".")
