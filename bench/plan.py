"""How far what ``kubectl ddp plan`` says of memory lies from what a training run has in use.

The trainer's GPT is trained by one process in 32 bits, at several sizes, with activations kept and computed again, in
one pass per step and in several; all tensors that live at once are counted. How long the plan itself takes is beside
it.
"""

from __future__ import annotations

import functools
import time
from typing import Final

from bench._gpt_steps import Size, foretold, train
from bench._live_bytes import peak_bytes
from bench.harness import Options, Report

SUMMARY = "memory that kubectl ddp plan foretells, against all tensors of a training run"

OFF_BY: Final = 0.10
"""The bar: so far a prediction may be off."""

SIZES: Final = {
    "11m": Size(layers=6, width=384, heads=6, window=128, samples=16),
    "11m_checkpointed": Size(layers=6, width=384, heads=6, window=128, samples=16, is_checkpointed=True),
    "25m": Size(layers=8, width=512, heads=8, window=256, samples=2),
    "25m_checkpointed": Size(layers=8, width=512, heads=8, window=256, samples=8, is_checkpointed=True),
    "29m_3_passes": Size(layers=12, width=448, heads=7, window=128, samples=8, passes=3),
    "5m_large_vocabulary": Size(layers=4, width=256, heads=4, window=256, samples=8, vocabulary=8192),
    "5m_large_vocabulary_checkpointed": Size(
        layers=4, width=256, heads=4, window=256, samples=8, vocabulary=8192, is_checkpointed=True
    ),
}
QUICK: Final = ("11m", "11m_checkpointed", "5m_large_vocabulary")


def measure(options: Options) -> Report:
    """Train at each size and compare."""
    report = Report()
    for name in QUICK if options.quick else SIZES:
        size = SIZES[name]
        measured = peak_bytes(functools.partial(train, size))
        said = foretold(size)
        off = abs(said.total / measured - 1)
        options.progress(f"{name}: foretold {said.total:.0f} at '{said.moment}', measured {measured} bytes")
        report.figure(f"{name}_foretold_bytes", round(said.total))
        report.figure(f"{name}_measured_bytes", measured)
        report.figure(f"{name}_off_by_ratio", off)
        report.at_most(f"{name}: foretold and measured differ by at most a tenth", off, OFF_BY)
    _time_a_large_plan(report)
    return report


def _time_a_large_plan(report: Report) -> None:
    """All layouts of 405 billion parameters on 1,024 GPUs."""
    from kubectl_ddp.plan.known import known
    from kubectl_ddp.plan.machine import GPUS, Machine
    from kubectl_ddp.plan.ranking import plan
    from kubectl_ddp.plan.work import Work

    gpu = GPUS["H100"]
    machine = Machine(gpu=gpu, nodes=128, per_node=8, far_bytes=gpu.far_bytes, reserved_bytes=4 * 2**30)
    begun = time.perf_counter()
    plan(known("llama3-405b"), Work(sequence=8192, global_batch=2048), machine)
    report.figure("1024_gpus_planned_seconds", time.perf_counter() - begun)
