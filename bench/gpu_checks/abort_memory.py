"""E: groups of one that are aborted from a second thread: memory of the GPU, threads and descriptors afterwards.

A group of one copies memory and runs no kernel of NCCL, so this shows leaks, and not that a kernel is aborted.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from bench.gpu_checks.check_report import Bench

WARM_CYCLES: Final = 5
GROWTH_ALLOWED_BYTES: Final = 64 << 20


def run(bench: Bench) -> None:
    """Make and abort groups, and compare the first cycles with the last."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    os.environ["TORCH_NCCL_RETHROW_CUDA_ERRORS"] = "0"
    cycles = bench.size(20, 8)
    for _ in range(WARM_CYCLES):
        cycle(bench)
    first = resource_usage(bench)
    for _ in range(cycles):
        cycle(bench)
    memory, threads, descriptors = (last - before for before, last in zip(first, resource_usage(bench), strict=True))
    bench.findings.add("cycles_count", cycles)
    bench.findings.at_most("growth of the GPU's memory, in bytes", memory, GROWTH_ALLOWED_BYTES)
    bench.findings.at_most("more threads after all cycles", threads, 2)
    bench.findings.at_most("more descriptors after all cycles", descriptors, 4)


def cycle(bench: Bench) -> None:
    """One group, from its beginning to its end."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if bench.is_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    numbers = torch.ones(1 << 16, device=bench.device)
    dist.all_reduce(numbers)
    failed: list[BaseException] = []

    def end() -> None:
        try:
            if bench.is_gpu:
                dist.distributed_c10d._abort_process_group()  # noqa: SLF001 - torch has no public way
            else:
                dist.destroy_process_group()
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the thread that can end the check
            failed.append(error)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    if bench.is_gpu:
        torch.cuda.synchronize()


def resource_usage(bench: Bench) -> tuple[int, int, int]:
    """Return bytes of the GPU in use, threads, and descriptors."""
    import torch

    used = 0
    if bench.is_gpu:
        free, total = torch.cuda.mem_get_info()
        used = total - free
    return used, *(len(list(Path("/proc/self", folder).iterdir())) for folder in ("task", "fd"))
