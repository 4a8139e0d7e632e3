"""C: collectives that the launcher reads from a rank's flight recorder, by the socket that it uses."""

from __future__ import annotations

import os
import time
from typing import Final

from bench.gpu_checks.check_report import Bench
from ddp_trainer.launch.in_worker import flight_recorder_server
from ddp_trainer.process import flight_recorder

COLLECTIVES: Final = 8
SECONDS: Final = 5.0


def run(bench: Bench) -> None:
    """Run eight all_reduces in a group of one, and read them back."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if bench.is_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    numbers = torch.ones(1024, device=bench.device)
    for _ in range(COLLECTIVES):
        dist.all_reduce(numbers)
    if bench.is_gpu:
        torch.cuda.synchronize()
    path = bench.directory / "worker.sock"
    flight_recorder_server.start(str(path))
    deadline = time.monotonic() + SECONDS
    while True:  # what is completed on a GPU, torch's watchdog finds out now and then
        record = flight_recorder.fetch_record(path, bench.timeout_factor * SECONDS)
        position = record.groups.get(flight_recorder.DEFAULT)
        if (position and position.completed >= COLLECTIVES) or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found = bench.findings
    found.at_least(
        "collectives that the launcher sees", sum("all_reduce" in collective for collective in record.collectives), 8
    )
    found.at_least("the last collective that was enqueued", position.enqueued if position else 0, COLLECTIVES)
    found.at_least("the last collective that was completed", position.completed if position else 0, COLLECTIVES)
    dist.destroy_process_group()
