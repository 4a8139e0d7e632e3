"""Bubble of a pipeline by ``ddp_step_wait_seconds_total``, compared with the formula of each schedule.

Two stages of layers that all cost the same compute steps of more and more micro-batches. A stage idles for
``(p - 1) / (v * m + p - 1)`` of a step with ``p`` ranks, ``m`` micro-batches and ``v`` stages on each rank: Y. Huang et
al., "GPipe", 2019, and for several stages D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", 2021. Zero-bubble schedules (P. Qi et al., "Zero Bubble Pipeline Parallelism", 2023) should
leave none. The cost of splitting the backward pass is not part of the bubble, and not measured here.

The difference from the formula is the time of the transfers. Each of the two ranks needs a separate processor.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.trainer_options import SCHEDULES

SUMMARY = "what stages of a pipeline wait for each other by every schedule, beside what the formula says"

RANKS: Final = 2
ROWS: Final = 128
"""Rows of a micro-batch."""
STEPS: Final = 16
UNLIKE: Final = 4
"""The first steps, in which schedules and buffers are made."""
MICRO_BATCHES: Final = (2, 4, 8)
QUICK_MICRO_BATCHES: Final = (4,)
BAR: Final = 0.1
"""Allowed difference from the formula, as a share of a step."""
PARTS: Final = tuple(SCHEDULES)


def measure(options: Options) -> Report:
    """Each schedule with each number of micro-batches."""
    if len(os.sched_getaffinity(0)) < RANKS:
        raise CannotMeasure(f"Stages that share a processor wait for it, and {RANKS} are needed.")
    report = Report()
    for schedule in options.parts(PARTS):
        for count in QUICK_MICRO_BATCHES if options.quick else MICRO_BATCHES:
            measured, known = bubble(schedule, count), formula(schedule, count)
            options.progress(
                f"{schedule}, {count} micro-batches: a bubble of {measured:.3f}, by the formula {known:.3f}"
            )
            name = f"{schedule.replace('-', '_')}_{count}"
            report.figure(f"{name}_bubble_ratio", measured)
            report.baseline(f"{name}_formula_ratio", known)
            what = f"the bubble of {schedule} with {count} micro-batches"
            if schedule.startswith("zero-bubble"):
                report.at_most(f"{what}, beside what 1f1b leaves", measured - formula("1f1b", count), BAR)
            else:
                report.at_most(f"distance of {what} from the formula", abs(measured - known), BAR)
    return report


def formula(schedule: str, micro_batches: int, ranks: int = RANKS) -> float:
    """Share of a step in which a rank waits for other stages.

    >>> formula("gpipe", 4, 5), formula("interleaved", 4, 3), formula("zero-bubble-v", 4)
    (0.5, 0.2, 0.0)
    """
    if schedule.startswith("zero-bubble"):
        return 0.0
    return (ranks - 1) / (SCHEDULES[schedule].stages_per_rank * micro_batches + ranks - 1)


def bubble(schedule: str, micro_batches: int) -> float:
    """Return the waiting time as a share of waiting and computing; the median of steps over all ranks.

    Raises:
        CannotMeasure: a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-bench-bubble-") as directory:
        launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", str(RANKS)]
        done = subprocess.run(
            [*launch, "-m", "bench.workloads.stage_rank", *_flags(schedule, micro_batches)],
            env={**os.environ, "DDP_BENCH_STAGES": directory},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise CannotMeasure(f"A run of {schedule} ended with {done.returncode}: {done.stderr[-1000:].strip()}")
        of_ranks = [json.loads((Path(directory) / str(rank)).read_text()) for rank in range(RANKS)]
    shares = []
    for of_step in list(zip(*of_ranks, strict=True))[UNLIKE:]:
        computed, waited = (sum(seconds) for seconds in zip(*of_step, strict=True))
        shares.append(waited / (computed + waited))
    return statistics.median(shares)


def _flags(schedule: str, micro_batches: int) -> list[str]:
    return [
        *("--task", "bench.workloads.uniform_stages:Even"),
        *("--parallel", f"pp={RANKS}", "--pipeline-schedule", schedule),
        *("--global-batch", str(ROWS * micro_batches), "--micro-batch", str(ROWS), "--batch-slices", "1"),
        *("--max-steps", str(STEPS), "--checkpoint-seconds", "inf", "--threads", "1", "--device", "cpu"),
    ]
