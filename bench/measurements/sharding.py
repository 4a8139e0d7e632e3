"""``--parallel shard``: every rank holds only its share of the state, and each layout loads the state of any other.

Steps of a GPT in 32 bits on text, clipped, in one process and then in worker groups on gloo, one for each row of
:data:`LAYOUTS`. ``bench parallel`` compares the losses under each layout. The rate is a third of the trainer's
default. At the default AdamW, whose steps do not depend on the size of gradients, amplifies rounding until even plain
DDP differs by 4e-4.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.parallel_dims import Layout

SUMMARY = "bytes per rank and checkpoints of models in pieces (--parallel shard), against one process"
PARTS: Final = ("memory", "checkpoints")

STEPS: Final = 50
QUICK_STEPS: Final = 10
MEMORY_STEPS: Final = 3
"""The state is complete after the first step, and then constant."""
TEXT_BYTES: Final = 60_000
COMMON: Final = (
    *("--task", "text", "--window", "32", "--model", "gpt:layers=4,width=64,heads=4", "--global-batch", "16"),
    *("--learning-rate", "0.001", "--schedule", "constant", "--warmup-steps", "5", "--clip-norm", "0.5"),
    *("--checkpoint-seconds", "inf"),
    *("--log-steps", "1", "--log-json", "--threads", "1", "--device", "cpu"),
)
TOLERANCE: Final = 1e-4
"""Largest difference of a loss, relative to that of one process."""
SLACK: Final = 1.05
"""Bytes of a rank over its share of the whole."""


@dataclass(frozen=True, slots=True)
class Row:
    """One layout of the table."""

    layout: str
    flags: tuple[str, ...] = ()

    @property
    def world(self) -> int:
        """Number of ranks."""
        return Layout.parse(self.layout).world if self.layout else 1

    @property
    def name(self) -> str:
        """Name as a part of a figure's name."""
        return re.sub(r"[^a-z0-9]+", "_", " ".join((self.layout, *self.flags)).lower()).strip("_") or "one_process"

    @property
    def argv(self) -> tuple[str, ...]:
        """Flags of the trainer."""
        return ("--parallel", self.layout, *self.flags) if self.layout else self.flags


ALONE: Final = Row("")
LAYOUTS: Final = (Row("replicate=4"), Row("shard=4"), Row("replicate=2,shard=2"), Row("shard=2,tp=2"))
"""Layouts whose state is measured."""
STORED: Final = (ALONE, Row("replicate=2"), Row("shard=2"), Row("shard=4"), Row("replicate=2,shard=2"))
"""Layouts that each resume from a checkpoint of each."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Losses and state size of one run."""

    losses: Mapping[int, float]
    """Loss by number of the step."""
    most_bytes: int
    """Bytes of weights, gradients and moments on the rank with the most of them."""


def measure(options: Options) -> Report:
    """Train under every layout, and resume from every layout's state under every other."""
    parts = options.parts(PARTS)
    report = Report()
    with tempfile.TemporaryDirectory(prefix="ddp-bench-sharding-") as name:
        directory = Path(name)
        write_text(directory / "text", options.seed)
        steps = QUICK_STEPS if options.quick else STEPS
        alone = train(directory, ALONE, steps)
        if "memory" in parts:
            report_memory(report, options, {row: train(directory, row, MEMORY_STEPS) for row in LAYOUTS}, alone)
        if "checkpoints" in parts:
            cross(report, options, directory, alone, steps)
    return report


def report_memory(report: Report, options: Options, rows: Mapping[Row, TrainResult], alone: TrainResult) -> None:
    """Report the state of each rank against its share of the state of one process."""
    report.baseline("one_process_state_bytes", alone.most_bytes)
    for row, trained in rows.items():
        share = trained.most_bytes / alone.most_bytes
        options.progress(f"{row.layout}: {trained.most_bytes} bytes a rank, {share:.3f} of the whole")
        report.figure(f"{row.name}_state_bytes", trained.most_bytes)
        report.figure(f"{row.name}_state_ratio", share)
        due = 1 / Layout.parse(row.layout).replica
        report.at_most(f"bytes of a rank's state over its share under {row.layout}", share / due, SLACK)


def cross(report: Report, options: Options, directory: Path, alone: TrainResult, steps: int) -> None:
    """Half of the steps under one layout, the others from its checkpoint under another."""
    held = 0
    for before in STORED:
        stored = directory / "stored"
        train(directory, before, steps // 2, checkpoints=stored)
        for after in STORED:
            copy = directory / "copy"
            shutil.copytree(stored, copy)
            trained = train(directory, after, steps, checkpoints=copy)
            shutil.rmtree(copy)
            apart = difference(trained.losses, alone.losses)
            went_on = sorted(trained.losses) == list(range(steps // 2 + 1, steps + 1))
            held += went_on and apart <= TOLERANCE
            options.progress(f"{before.layout or 'one process'} -> {after.layout or 'one process'}: {apart:.1e}")
        shutil.rmtree(stored)
    report.figure("checkpoints_crossed_count", held)
    report.at_least("pairs of layouts of which one goes on from the other", held, len(STORED) ** 2)


def difference(losses: Mapping[int, float], of: Mapping[int, float]) -> float:
    """Largest difference of a step's loss, relative to that which it should be.

    >>> difference({2: 1.0, 3: 2.2}, {1: 5.0, 2: 1.0, 3: 2.0})
    0.10000000000000009
    """
    return max(abs(loss / of[step] - 1) for step, loss in losses.items())


def train(directory: Path, row: Row, steps: int, *, checkpoints: Path | None = None) -> TrainResult:
    """A worker group under this layout, to its end."""
    held = directory / "held"
    held.mkdir()
    keeping = ("--checkpoint-dir", str(checkpoints)) if checkpoints is not None else ()
    flags = (*COMMON, "--data", str(directory / "text"), "--max-steps", str(steps), *row.argv, *keeping)
    launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", str(row.world)]
    log = directory / "stderr"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*launch, "-m", "bench.workloads.sharding_rank", *flags],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=_environment(held),
        ) as group,
    ):
        events = [json.loads(line) for line in group.stdout or ()]
    if group.returncode:
        raise CannotMeasure(
            f"{row.layout or 'One process'} ended with {group.returncode}: {log.read_text()[-500:].strip()}"
        )
    most = max(int(file.read_text()) for file in held.iterdir())
    shutil.rmtree(held)
    return TrainResult({event["step"]: event["loss"] for event in events if event["event"] == "step"}, most)


def write_text(folder: Path, seed: int) -> None:
    """Words of a small language, so that there is something to learn."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 7))) for _ in range(200)]
    folder.mkdir()
    (folder / "words.txt").write_text(" ".join(chance.choices(words, k=TEXT_BYTES // 5)))


def _environment(held: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
    return {**inherited, "DDP_BENCH_STATE": str(held)}
