"""Fifty steps of a GPT under every layout of ranks: the losses are those of one process, or the layout is wrong.

One process learns first, on the same samples with the same weights. Then the same run in copies (``replicate``), in
pieces (``shard``), in slices (``tp``), in stages (``pp``, by each schedule), and in products of these. Losses are
compared step by step in fp32. As a control the model is cut by a plan that leaves sums undone, as a person might write
it: it runs without a complaint, and must *not* pass.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.parallel_dims import Layout

SUMMARY = "losses of a GPT in copies, pieces, slices, stages and their products, beside those of one process"

STEPS: Final = 50
QUICK_STEPS: Final = 8
BAR: Final = 1e-4
"""Relative, at the worst step."""

TASK: Final = "bench.workloads.layouts:LargeNumbers"
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
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        alone = losses(Path(directory, "alone"), TASK, steps, ())
        for part in parts:
            task, flags = (WRONG, LAYOUTS["tp2"]) if part == "wrong_plan" else (TASK, LAYOUTS[part])
            worst = distance(alone, losses(Path(directory, part), task, steps, flags))
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
    return max(abs(value - expected) / expected for value, expected in zip(found, wanted, strict=True))


def losses(directory: Path, task: str, steps: int, flags: Sequence[str]) -> list[float]:
    """Return the losses of the steps of one run.

    Raises:
        CannotMeasure: The run failed.
    """
    from tests.local.workloads.train_forked import Run, losses_of

    directory.mkdir()
    world = Layout.parse(flags[1]).world if flags else 1
    try:
        (found,) = losses_of(directory, Run(world, ["--task", task, "--max-steps", str(steps), *COMMON, *flags]))
    except AssertionError as error:
        raise CannotMeasure(f"A run failed: {error}") from None
    return found
