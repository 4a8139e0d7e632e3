"""Fifty steps of a GPT under every layout of ranks: the losses are those of one process, or the layout is wrong.

One process learns first, on the same samples with the same weights. Then the same run in copies (``replicate``), in
pieces (``shard``), in slices (``tp``), in stages (``pp``, by each schedule), and in products of these. Losses are
compared step by step in fp32. As a control the model is cut by a plan that leaves sums undone, as a person might write
it: it runs without a complaint, and must *not* pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.parallel_dims import Layout

SUMMARY = "losses of a GPT in copies, pieces, slices, stages and their products, beside those of one process"

STEPS: Final = 50
QUICK_STEPS: Final = 8
BAR: Final = 1e-4
"""Relative, at the worst step."""

TASK: Final = "bench.workloads.layouts:Numbers"
WRONG: Final = "bench.workloads.layouts:WrongTpPlan"
LAYOUTS: Final[Mapping[str, Sequence[str]]] = {
    "replicate4": ("--parallel", "replicate=4"),
    "shard4": ("--parallel", "shard=4"),
    "replicate2_shard2": ("--parallel", "replicate=2,shard=2"),
    "tp2": ("--parallel", "tp=2"),
    "replicate2_tp2": ("--parallel", "replicate=2,tp=2"),
    "tp2_shard2": ("--parallel", "shard=2,tp=2"),
    "pp2_gpipe": ("--parallel", "pp=2", "--pipeline-schedule", "gpipe"),
    "pp2_1f1b": ("--parallel", "pp=2", "--pipeline-schedule", "1f1b"),
    "pp2_interleaved": ("--parallel", "pp=2", "--pipeline-schedule", "interleaved"),
    "pp2_zero_bubble": ("--parallel", "pp=2", "--pipeline-schedule", "zero-bubble"),
    "pp2_zero_bubble_v": ("--parallel", "pp=2", "--pipeline-schedule", "zero-bubble-v"),
    "pp2_replicate2": ("--parallel", "replicate=2,pp=2"),
    "pp2_tp2": ("--parallel", "tp=2,pp=2"),
    "pp2_shard2": ("--parallel", "shard=2,pp=2"),
    "pp2_tp2_shard2": ("--parallel", "shard=2,tp=2,pp=2"),
}
"""Name of a figure → flags."""

PARTS: Final = (*LAYOUTS, "wrong_plan")

COMMON: Final = (
    *("--global-batch", "8", "--batch-slices", "4", "--micro-batch", "1", "--learning-rate", "0.001"),
    *("--warmup-steps", "10"),
    *("--clip-norm", "1", "--log-steps", "1", "--threads", "1", "--device", "cpu", "--epochs", "100"),
)


def measure(options: Options) -> Report:
    """Run one process, and then each layout."""
    report = Report()
    steps = QUICK_STEPS if options.quick else STEPS
    parts = options.parts(PARTS)
    runs = [run(TASK, steps, ()), *(_run_of(part, steps) for part in parts)]
    with closing(losses(runs, steps)) as found:
        alone = next(found)
        for part, those in zip(parts, found, strict=True):
            worst = distance(alone, those)
            options.progress(f"{part}: at the worst of {steps} steps {worst:.2e} away from one process")
            if part == "wrong_plan":
                report.baseline("wrong_plan_worst_loss_difference_ratio", worst)
                report.at_least("distance of a wrong plan's losses, the negative control", worst, 10 * BAR)
            else:
                report.figure(f"{part}_worst_loss_difference_ratio", worst)
                report.at_most(f"relative distance of {part}'s losses from one process's", worst, BAR)
    return report


def distance(wanted: Sequence[float], found: Sequence[float]) -> float:
    """Relative distance at the worst step.

    >>> distance([2.0, 4.0], [2.0, 3.0])
    0.25
    """
    return max(abs(ours - theirs) / theirs for ours, theirs in zip(found, wanted, strict=True))


def run(task: str, steps: int, flags: Sequence[str]) -> str:
    """One run as :mod:`tests.local.workloads.train_forked` takes it."""
    world = Layout.parse(flags[1]).world if flags else 1
    return json.dumps([world, ["--task", task, "--max-steps", str(steps), *COMMON, *flags]])


def _run_of(part: str, steps: int) -> str:
    return run(WRONG, steps, LAYOUTS["tp2"]) if part == "wrong_plan" else run(TASK, steps, LAYOUTS[part])


def losses(runs: Sequence[str], steps: int) -> Iterator[list[float]]:
    """Yield the losses of each step, run by run.

    Raises:
        CannotMeasure: a run failed.
    """
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [sys.executable, "-m", "tests.local.workloads.train_forked", *runs],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=_environment(),
        ) as group,
    ):
        events = map(json.loads, group.stdout or ())
        steps_of_all = (event["loss"] for event in events if event["event"] == "step")
        for _ in runs:
            of_run = list(islice(steps_of_all, steps))
            if len(of_run) < steps:
                group.wait()
                log.seek(0)
                raise CannotMeasure(f"A run ended with step {len(of_run)}: {log.read()[-1000:].strip()}")
            yield of_run


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
