"""Speeds of a rank's own device: matrix products, copies within its memory, and copies to and from the host.

Not tested on GPUs. A CPU runs the same measurement with smaller sizes, so that tests cover it.
"""

from __future__ import annotations

import statistics
from typing import Final

import torch

from ddp_collectives.device import Run, Timer
from ddp_collectives.thresholds import DeviceThroughput

_SIDE: Final = {"cuda": 8192, "cpu": 256}
"""Side of the square matrices, large enough to keep a GPU busy for a millisecond."""
_COPY_BYTES: Final = {"cuda": 1 << 30, "cpu": 4 << 20}
_REPEATS: Final = 10
_WARMUP: Final = 3


def measure_throughput(device: torch.device, timer: Timer) -> DeviceThroughput:
    """Measure for some seconds, and return medians of ten repeats. A faulty device raises an error of torch."""
    size = _COPY_BYTES[device.type]
    here, there = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    host = torch.zeros(size // 4, dtype=torch.uint8, pin_memory=device.type == "cuda")
    part = here[: len(host)]
    to_device = _median(lambda: part.copy_(host, non_blocking=True), timer)
    to_host = _median(lambda: host.copy_(part, non_blocking=True), timer)
    return DeviceThroughput(
        matmul_flops=_matmul_flops(device, timer),
        memory_bytes_per_second=2 * size / _median(lambda: there.copy_(here), timer),
        host_bytes_per_second=len(host) / max(to_device, to_host),
    )


def _matmul_flops(device: torch.device, timer: Timer) -> float:
    side = _SIDE[device.type]
    # Random numbers: with zeros a GPU needs less power and keeps higher clocks than in training.
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    return 2 * side**3 / _median(lambda: torch.mm(left, right, out=product), timer)


def _median(run: Run, timer: Timer) -> float:
    for _ in range(_WARMUP):
        run()
    return statistics.median(timer(run) for _ in range(_REPEATS))


def device_name(device: torch.device) -> str:
    """Return the name of the device by CUDA; ``cpu`` for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
