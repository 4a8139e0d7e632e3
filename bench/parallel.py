"""Fifty steps of a GPT under every layout of ranks: the losses are those of one process, or the layout is wrong.

One process learns first, on the same samples with the same weights. Then the same run in slices (``tp``), in stages
(``pp``, by each schedule), and in copies of these. Losses are compared step by step in fp32. As a control the model
is cut by a plan that leaves sums undone, as a person might write it: it runs without a complaint, and must *not* pass.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report

SUMMARY = "losses of a GPT in slices, stages and copies of them, beside those of one process"

STEPS: Final = 50
QUICK_STEPS: Final = 8
BAR: Final = 1e-4
"""Relative, at the worst step."""

TASK: Final = "bench._layouts:Numbers"
WRONG: Final = "bench._layouts:WronglyCut"
LAYOUTS: Final[Mapping[str, tuple[int, Sequence[str]]]] = {
    "tp2": (2, ("--parallel", "tp=2")),
    "replicate2_tp2": (4, ("--parallel", "replicate=2,tp=2")),
    "pp2_gpipe": (2, ("--parallel", "pp=2", "--pipeline-schedule", "gpipe")),
    "pp2_1f1b": (2, ("--parallel", "pp=2", "--pipeline-schedule", "1f1b")),
    "pp2_interleaved": (2, ("--parallel", "pp=2", "--pipeline-schedule", "interleaved")),
    "pp2_zero_bubble": (2, ("--parallel", "pp=2", "--pipeline-schedule", "zero-bubble")),
    "pp2_zero_bubble_v": (2, ("--parallel", "pp=2", "--pipeline-schedule", "zero-bubble-v")),
    "replicate2_pp2": (4, ("--parallel", "replicate=2,pp=2")),
}
"""Name of a figure → ranks and flags."""

PARTS: Final = (*LAYOUTS, "wrong_plan")

COMMON: Final = (
    *("--global-batch", "8", "--shards", "2", "--micro-batch", "1", "--learning-rate", "0.001", "--warmup-steps", "10"),
    *("--clip-norm", "1", "--log-steps", "1", "--log-json", "--threads", "1", "--device", "cpu", "--epochs", "100"),
)


def measure(options: Options) -> Report:
    """Run one process, and then each layout."""
    report = Report()
    steps = QUICK_STEPS if options.quick else STEPS
    parts = options.parts(PARTS)
    with tempfile.TemporaryDirectory(prefix="ddp-bench-parallel-") as name:
        log = Path(name) / "stderr"
        alone = losses(log, TASK, 1, steps, ())
        for part in parts:
            task, (world, flags) = (WRONG, LAYOUTS["tp2"]) if part == "wrong_plan" else (TASK, LAYOUTS[part])
            worst = distance(alone, losses(log, task, world, steps, flags))
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


def losses(log: Path, task: str, world: int, steps: int, flags: Sequence[str]) -> list[float]:
    """Of each step of a run.

    Raises:
        CannotMeasure: it failed.
    """
    launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", str(world)]
    every = ("--task", task, "--max-steps", str(steps), *COMMON, *flags)
    with log.open("w") as stderr:
        command = [*launch, "-m", "ddp_trainer", "train", *every]
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, env=_environment())
    if run.returncode:
        raise CannotMeasure(f"{' '.join(flags)} ended with {run.returncode}: {log.read_text()[-500:].strip()}")
    events = [json.loads(line) for line in run.stdout.splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
