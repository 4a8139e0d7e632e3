"""Where the buffers are, and how a call is timed there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

from ddp_trainer.preflight.collectives.errors import BadRequest

Run = Callable[[], object]


class Timer(Protocol):
    """Takes the time of one call."""

    def __call__(self, run: Run) -> float:
        """Seconds from the call until its result may be used."""


def on_host(run: Run) -> float:
    """A call that returns when it is done."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def on_gpu(run: Run) -> float:
    """A call that returns when it is queued: by events in the stream that waits for it, so that no launch counts."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # of torch
    began.record()
    run()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000


def choose(backend: str, local_rank: int, local_world: int) -> tuple[str, torch.device, Timer]:
    """Backend, device and timer of this rank. Raises BadRequest where they cannot be had."""
    has_gpus = torch.cuda.is_available()
    if backend == "auto":
        backend = "nccl" if has_gpus and torch.distributed.is_nccl_available() else "gloo"
    if backend == "gloo":
        return backend, torch.device("cpu"), on_host
    if not torch.distributed.is_nccl_available():
        raise BadRequest(f"--backend nccl: torch {torch.__version__} was built without NCCL; use --backend gloo.")
    gpus = torch.cuda.device_count()
    if gpus < local_world:
        raise BadRequest(
            f"--backend nccl: {local_world} ranks on this node and {gpus} GPUs that torch can use, and NCCL refuses "
            f"two ranks on one; use --nproc-per-node {gpus}, or --backend gloo."
            if gpus
            else "--backend nccl: torch can use no GPU on this node; use --backend gloo."
        )
    torch.cuda.set_device(local_rank)
    return backend, torch.device("cuda", local_rank), on_gpu
