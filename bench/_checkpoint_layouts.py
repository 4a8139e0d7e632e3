"""A checkpoint of each layout goes on under each layout, and what is exported from it does not depend on its own.

One process learns without a break. Then the first half of its steps is taken under each layout, and the second half,
from a copy of the checkpoint that this left, under each: the losses are those of the one process, or something was
lost on the way. For the digests every layout writes one and the same state: it goes on from the one process's
checkpoint for a step at a rate that no weight in 32 bits feels. What ``checkpoint export`` makes of it is one file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.layout import Layout

STEPS: Final = 20
QUICK_STEPS: Final = 6
BAR: Final = 1e-4
"""Relative, at the worst step."""
LAYOUTS: Final = ("replicate=4", "shard=4", "replicate=2,shard=2", "shard=2,tp=2", "pp=2")
QUICK_LAYOUTS: Final = ("replicate=2", "shard=2", "pp=2")
UNFELT: Final = "1e-30"
"""A learning rate whose steps are lost in the rounding of any weight but 0."""
COMMON: Final = (
    *("--task", "bench._layouts:Numbers", "--global-batch", "8", "--shards", "4", "--warmup-steps", "5"),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf", "--epochs", "100"),
    *("--log-steps", "1", "--log-json", "--threads", "1", "--device", "cpu"),
)


def cross(report: Report, options: Options) -> None:
    """Every pair of layouts, and the digest of every export."""
    layouts, steps = (QUICK_LAYOUTS, QUICK_STEPS) if options.quick else (LAYOUTS, STEPS)
    with tempfile.TemporaryDirectory(prefix="ddp-bench-layouts-") as name:
        directory = Path(name)
        alone = train(directory, "", steps)
        worst = [_pairs_of(directory, before, layouts, alone, options) for before in layouts]
        held = sum(distance <= BAR for distances in worst for distance in distances)
        report.figure("layout_pairs_count", held)
        report.figure("layout_pairs_worst_loss_difference_ratio", max(max(distances) for distances in worst))
        report.at_least(f"pairs of {len(layouts)} layouts of which one goes on from the other", held, len(layouts) ** 2)
        train(directory, "", steps // 2, kept=directory / "one")
        digests = {"one process": export(directory, directory / "one")}
        digests |= {layout: _written_under(directory, layout, steps // 2) for layout in layouts}
    for layout, digest in digests.items():
        options.progress(f"exported after {layout}: {digest}")
    report.figure("layout_export_digests_count", len(set(digests.values())))
    report.at_most(
        f"different exports of one state that {len(digests)} layouts have written", len(set(digests.values())), 1
    )


def _pairs_of(
    directory: Path, before: str, layouts: Sequence[str], alone: Mapping[int, float], options: Options
) -> list[float]:
    """Distances from the one process of runs that go on from this layout's checkpoint; infinite where one does not."""
    stored, half = directory / "stored", len(alone) // 2
    train(directory, before, half, kept=stored)
    found = []
    for after in layouts:
        losses = train(directory, after, len(alone), kept=_copy(stored, directory / "copy"))
        went_on = sorted(losses) == list(range(half + 1, len(alone) + 1))
        found.append(max(abs(losses[step] / alone[step] - 1) for step in losses) if went_on else float("inf"))
        options.progress(f"{before} -> {after}: {found[-1]:.1e} away from one process at the worst step")
    shutil.rmtree(stored)
    return found


def _written_under(directory: Path, layout: str, step: int) -> str:
    """Digest of what is exported from the one process's state once this layout has written it again."""
    copy = _copy(directory / "one", directory / "copy")
    train(directory, layout, step + 1, "--learning-rate", UNFELT, kept=copy)
    return export(directory, copy)


def export(directory: Path, checkpoints: Path) -> str:
    """SHA-256 of the weights of the newest checkpoint as one safetensors file."""
    file = directory / "weights.safetensors"
    _run(directory, ["checkpoint", "export", str(checkpoints), "--to", str(file)])
    return hashlib.sha256(file.read_bytes()).hexdigest()


def train(directory: Path, layout: str, steps: int, *flags: str, kept: Path | None = None) -> Mapping[int, float]:
    """Losses of a worker group under this layout, by the number of the step; of one process where it is empty."""
    world = Layout.parse(layout).world if layout else 1
    launch = ["launch", "--standalone", "--nproc-per-node", str(world), "-m", "ddp_trainer", "train"]
    keeping = () if kept is None else ("--checkpoint-dir", str(kept))
    laid = ("--parallel", layout) if layout else ()
    rate = () if "--learning-rate" in flags else ("--learning-rate", "0.001")
    told = _run(directory, [*launch, *COMMON, *rate, *flags, "--max-steps", str(steps), *laid, *keeping])
    events = [json.loads(line) for line in told.splitlines()]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def _run(directory: Path, arguments: Sequence[str]) -> str:
    log = directory / "stderr"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
    command = [sys.executable, "-m", "ddp_trainer", *arguments]
    with log.open("w") as stderr:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, env=clean)
    if run.returncode:
        raise CannotMeasure(f"{' '.join(arguments)} ended with {run.returncode}: {log.read_text()[-500:].strip()}")
    return run.stdout


def _copy(stored: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stored, copy)
    return copy
