"""Choice of backend and device, memory check, and timers of a call."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from ddp_collectives.errors import BadRequest
from ddp_collectives.sizes import show

Run = Callable[[], object]
Timer = Callable[[Run], float]
"""Function that returns the seconds from a call until its result is usable."""

_CGROUP: Final = Path("/sys/fs/cgroup")


def on_host(run: Run) -> float:
    """Time a call that returns when it is complete."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def on_gpu(run: Run) -> float:
    """Time a call that returns when it is queued.

    Events in the stream that waits for it measure the time, so launch overhead does not count.
    """
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # of torch
    began.record()
    run()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000


def choose(backend: str, local_rank: int, local_world: int) -> tuple[str, torch.device, Timer]:
    """Return backend, device and timer of this rank.

    Raises:
        BadRequest: The backend or the device is not available.
    """
    has_gpus = torch.cuda.is_available()
    if backend == "auto":
        backend = "nccl" if has_gpus and torch.distributed.is_nccl_available() else "gloo"
    if backend == "gloo":
        return backend, torch.device("cpu"), on_host
    if not torch.distributed.is_nccl_available():
        raise BadRequest(f"--backend nccl: torch {torch.__version__} was built without NCCL; use --backend gloo.")
    gpus = torch.cuda.device_count() if has_gpus else 0
    # Not local_world: a worker that sees only its own GPU has local rank 0.
    if local_rank >= gpus:
        raise BadRequest(
            f"--backend nccl: {local_world} ranks on this node and {gpus} GPUs that torch can use; use "
            f"--nproc-per-node {gpus}, or --backend gloo."
            if gpus
            else "--backend nccl: torch can use no GPU on this node; use --backend gloo."
        )
    torch.cuda.set_device(local_rank)
    return backend, torch.device("cuda", local_rank), on_gpu


def check_free_memory(largest_bytes: int, device: torch.device, local_world: int) -> None:
    """Check the free memory before anything is allocated, because the kernel overcommits.

    No operation needs more than twice the size: one buffer to send and one to receive.

    Raises:
        BadRequest: The largest message does not fit.
    """
    on_cpu = device.type == "cpu"
    needed = 2 * largest_bytes * (local_world if on_cpu else 1)
    free = free_memory() if on_cpu else torch.cuda.mem_get_info(device)[0]
    if needed > free:
        who = f"the {local_world} ranks of this node need" if on_cpu and local_world > 1 else "a rank needs"
        raise BadRequest(
            f"Messages of {show(largest_bytes)} do not fit: {who} {show(needed)}, and {show(free)} are free; "
            "lower --sizes."
        )


def free_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """Return the bytes that this container may still allocate, by the machine's free memory and its own limit."""
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    try:
        limit, used = ((cgroup / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else max(0, min(free, int(limit) - int(used)))
