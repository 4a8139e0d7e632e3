"""Error of the memory that ``kubectl ddp plan`` predicts, against the memory that a training run uses.

The trainer's GPT is trained by one process in 32 bits, at several sizes, with activations kept and computed again, in
one pass per step and in several; the peak of all live tensors is counted. Then it is trained by several ranks, as
``ddp_trainer train --parallel`` does it, in pieces, in slices and in stages; the rank with the
largest use counts. There the kernel measures, because threads of gloo free tensors too. The time of the plan itself is
also measured.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Final

from bench.drivers.tensor_memory import peak_bytes
from bench.harness import Options, Report
from bench.workloads import layout_steps
from bench.workloads.gpt_steps import Size, estimate_memory, train
from bench.workloads.layout_steps import LayoutCase
from kubectl_ddp.plan.memory import Memory
from kubectl_ddp.plan.recomputation import ALL, CHEAP, Recomputation

SUMMARY = "memory that kubectl ddp plan foretells, against all tensors of a training run"

OFF_BY: Final = 0.10
"""The bar: so far a prediction may be off."""

SIZES: Final = {
    "11m": Size(layers=6, width=384, heads=6, window=128, samples=16),
    "11m_checkpointed": Size(layers=6, width=384, heads=6, window=128, samples=16, again=ALL),
    "11m_cheap": Size(layers=6, width=384, heads=6, window=128, samples=16, again=CHEAP),
    "11m_every_2nd": Size(layers=6, width=384, heads=6, window=128, samples=16, again=Recomputation(2)),
    "25m": Size(layers=8, width=512, heads=8, window=256, samples=2),
    "25m_checkpointed": Size(layers=8, width=512, heads=8, window=256, samples=8, again=ALL),
    "29m_3_passes": Size(layers=12, width=448, heads=7, window=128, samples=8, passes=3),
    "5m_large_vocabulary": Size(layers=4, width=256, heads=4, window=256, samples=8, vocabulary=8192),
    "5m_large_vocabulary_checkpointed": Size(
        layers=4, width=256, heads=4, window=256, samples=8, vocabulary=8192, again=ALL
    ),
    "13m_every_3rd": Size(layers=7, width=384, heads=6, window=128, samples=16, again=Recomputation(3)),
}
_SMALL: Final = LayoutCase(layout="shard=2", layers=4, width=256, heads=4, window=128, samples=8)
LAID: Final = {
    "shard2": _SMALL,
    "shard2_checkpointed": replace(_SMALL, again=ALL),
    "shard2_cheap": replace(_SMALL, again=CHEAP),
    "shard2_2_passes": replace(_SMALL, samples=4, passes=2),
    "shard4": replace(_SMALL, layout="shard=4", samples=4),
    "tp2": replace(_SMALL, layout="tp=2"),
    "tp2_cheap": replace(_SMALL, layout="tp=2", again=CHEAP),
    "pp2": replace(_SMALL, layout="pp=2", samples=4, passes=4),
    "pp2_24_passes": LayoutCase(layout="pp=2", layers=4, width=256, heads=4, window=128, samples=1, passes=24),
    "pp2_every_3rd": replace(_SMALL, layout="pp=2", samples=4, passes=4, again=Recomputation(3)),
    "shard2_tp2": replace(_SMALL, layout="shard=2,tp=2"),
    "shard2_pp2": replace(_SMALL, layout="shard=2,pp=2", samples=4, passes=4),
    "shard2_pp2_wide": LayoutCase(layout="shard=2,pp=2", layers=8, width=512, heads=8, window=32, samples=1, passes=4),
}
PARTS: Final = ("one", *LAID)
QUICK: Final = ("11m", "11m_checkpointed", "11m_cheap", "11m_every_2nd", "5m_large_vocabulary")


def measure(options: Options) -> Report:
    """Train at each size and compare."""
    report, parts = Report(), options.parts(PARTS)
    if "one" in parts:
        for name in QUICK if options.quick else SIZES:
            size = SIZES[name]
            _compare(report, options, name, estimate_memory(size), peak_bytes(functools.partial(train, size)))
        _time_a_large_plan(report)
    for name, laid in LAID.items():
        if name in parts:
            _compare(report, options, name, layout_steps.estimate_memory(laid), layout_steps.measure_peak_bytes(laid))
    return report


def _compare(report: Report, options: Options, name: str, said: Memory, measured: int) -> None:
    off = abs(said.total / measured - 1)
    options.progress(f"{name}: foretold {said.total:.0f} at '{said.moment}', measured {measured} bytes")
    report.figure(f"{name}_foretold_bytes", round(said.total))
    report.figure(f"{name}_measured_bytes", measured)
    report.figure(f"{name}_off_by_ratio", off)
    report.at_most(f"{name}: foretold and measured differ by at most a tenth", off, OFF_BY)


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
