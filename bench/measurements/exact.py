"""``--level exact``: one SHA-256 of weights, optimizer and losses, whatever the number of ranks; and what that costs.

The same 40 steps, with dropout, on real digits: at worlds of 1, 2, 3, 4, 5 and 8 processes, and in one run that goes
4 → 3 → 1 → 2 on the way, through checkpoints. The same is done with plain DDP (``--level ordered``), which must *not*
come to one SHA-256: a check that everything passes checks nothing. Then both levels take turns at the same work with
the same threads, for the time of a step.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio

SUMMARY = "bits of a run at worlds 1 to 8 and across resizes with --level exact, and its cost against plain DDP"

STEPS: Final = 40
WORLDS: Final = (1, 2, 3, 4, 5, 8)
RESIZES: Final = (4, 3, 1, 2)
QUICK_WORLDS: Final = (1, 2, 3)
CONTROL_WORLDS: Final = (1, 2, 3)
COMMON: Final = (
    *("--global-batch", "64", "--batch-slices", "8", "--schedule", "constant", "--warmup-steps", "5"),
    *("--clip-norm", "1"),
    *("--log-steps", "1", "--log-json", "--threads", "1", "--device", "cpu"),
)
COST_WORLD: Final = 2
COST_STEPS: Final = 120
COST_MODEL: Final = "mlp:hidden=512"


def measure(options: Options) -> Report:
    """Compare bits, then times."""
    report = Report()
    with tempfile.TemporaryDirectory(prefix="ddp-bench-exact-") as name:
        directory = Path(name)
        exact = [bits(directory, "exact", [world]) for world in (QUICK_WORLDS if options.quick else WORLDS)]
        exact.append(bits(directory, "exact", RESIZES))
        ordered = [bits(directory, "ordered", [world]) for world in CONTROL_WORLDS]
        for level, found in (("exact", exact), ("ordered", ordered)):
            options.progress(f"{level}: {len(set(found))} different SHA-256 in {len(found)} runs: {sorted(set(found))}")
        times = interleaved(
            {level: lambda level=level: step_seconds(directory, level) for level in ("exact", "ordered")},  # type: ignore[misc] # a default binds the name
            rounds=2 if options.quick else 7,
            options=options,
        )
    report.figure("exact_runs_count", len(exact))
    report.figure("exact_different_sha256_count", len(set(exact)))
    report.baseline("ordered_different_sha256_count", len(set(ordered)))
    report.figure("exact_step_seconds", times["exact"])
    report.baseline("ordered_step_seconds", times["ordered"])
    cost = report.figure("exact_step_over_ordered_ratio", paired_ratio(times["exact"], times["ordered"]))
    options.progress(f"A step with exact takes {cost.median:.2f} times as long as with ordered on {COST_WORLD} ranks.")
    report.at_most("different SHA-256 with exact", len(set(exact)), 1)
    report.at_least("different SHA-256 with plain DDP, the negative control", len(set(ordered)), 2)
    return report


def bits(directory: Path, level: str, worlds: Sequence[int]) -> str:
    """SHA-256 of weights, optimizer and losses after all steps, which these worlds took in equal parts."""
    from ddp_trainer.train.checkpoint.checkpoint_files import directories, read, unpack
    from ddp_trainer.train.data.batch_reader import sha256

    checkpoints = directory / f"{level}-{'-'.join(map(str, worlds))}"
    losses: dict[int, float] = {}
    for number, world in enumerate(worlds, start=1):
        steps = STEPS * number // len(worlds)
        flags = ("--level", level, "--max-steps", str(steps), "--checkpoint-dir", str(checkpoints))
        losses |= {step: loss for step, loss, _ in train(directory, world, flags)}
    if sorted(losses) != list(range(1, STEPS + 1)):
        raise CannotMeasure(f"The run at {worlds} printed the losses of {len(losses)} steps, not of {STEPS}.")
    state = unpack(read(next(directories(checkpoints))))
    shutil.rmtree(checkpoints)
    return sha256([state["model"], state["optimizer"], sorted(losses.items())])


def step_seconds(directory: Path, level: str) -> float:
    """Mean seconds of a step over the second half of a run, by the clock of who reads its lines."""
    flags = ("--level", level, "--max-steps", str(COST_STEPS), "--model", COST_MODEL)
    at = {step: seconds for step, _, seconds in train(directory, COST_WORLD, flags)}
    return (at[COST_STEPS] - at[COST_STEPS // 2]) / (COST_STEPS - COST_STEPS // 2)


def train(directory: Path, world: int, flags: Sequence[str]) -> list[tuple[int, float, float]]:
    """Run a worker group of this size to its end; return number, loss and report time of each step."""
    launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", str(world)]
    command = [*launch, "-m", "ddp_trainer", "train", *COMMON, *flags]
    steps = []
    log = directory / "stderr"
    with (
        log.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=_environment()) as group,
    ):
        for line in group.stdout or ():
            read_at = time.perf_counter()
            event = json.loads(line)
            if event["event"] == "step":
                steps.append((event["step"], event["loss"], read_at))
    if group.returncode:
        raise CannotMeasure(f"{world} ranks ended with {group.returncode}: {log.read_text()[-500:].strip()}")
    return steps


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
