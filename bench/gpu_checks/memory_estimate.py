"""L: the memory of one GPU that ``kubectl ddp plan`` computes, against what torch and the driver count."""

from __future__ import annotations

from typing import Final

from bench.drivers.tensor_memory import peak_bytes
from bench.gpu_checks.check_report import Bench
from bench.workloads.gpt_steps import Size, estimate_memory, train
from kubectl_ddp.plan.recomputation import ALL

OFF_BY: Final = 0.10
SIZES: Final = {
    "300m": Size(layers=24, width=1024, heads=16, window=512, samples=8),
    "300m_checkpointed": Size(layers=24, width=1024, heads=16, window=512, samples=16, again=ALL),
    "100m_large_vocabulary": Size(layers=12, width=768, heads=12, window=512, samples=8, vocabulary=50257),
    "1200m": Size(layers=24, width=2048, heads=16, window=512, samples=4),
}
SMALL: Final = {"1m": Size(layers=2, width=192, heads=2, window=64, samples=4)}


def run(bench: Bench) -> None:
    """Train at each size, and compare."""
    for name, size in (SMALL if bench.is_small else SIZES).items():
        if bench.seconds_left < 3.0:
            bench.findings.mark_unsupported(name, "the time limit was reached")
            continue
        measured = _measure_gpu_memory(bench, name, size) if bench.is_gpu else peak_bytes(lambda size=size: train(size))
        planned = estimate_memory(size).total
        bench.findings.add(f"{name}_planned_bytes", round(planned))
        bench.findings.add(f"{name}_measured_bytes", measured)
        bench.findings.at_most(f"{name}: plan off from what was allocated", abs(planned / measured - 1), OFF_BY)


def _measure_gpu_memory(bench: Bench, name: str, size: Size) -> int:
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train(size, device="cuda")
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    bench.findings.add(f"{name}_used_by_driver_bytes", total - free)
    return torch.cuda.max_memory_allocated() - before
