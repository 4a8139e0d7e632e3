"""A checkpoint of each layout can be resumed under each layout, and its export does not depend on the layout.

One process learns without a break. Then the first half of its steps is taken under each layout, and the second half,
from a copy of the checkpoint that this left, under each: the losses are those of the one process, or something was
lost on the way. As a control one first half is learned a tenth faster, and runs resumed from it must differ.

For the digests every layout writes the same state: it resumes from the checkpoint of the one process and takes a step
at a rate too small to change a weight in 32 bits. ``checkpoint export`` writes the same file for every layout. A run of
every layout that begins with that file (``--init-from``) is exported as the same file again.
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
from ddp_trainer.common.parallel_dims import Layout

STEPS: Final = 20
QUICK_STEPS: Final = 6
BAR: Final = 1e-4
"""Relative, at the worst step."""
LAYOUTS: Final = ("replicate=4", "shard=4", "replicate=2,shard=2", "shard=2,tp=2", "pp=2")
QUICK_LAYOUTS: Final = ("replicate=2", "shard=2", "pp=2")
EXPORTED: Final = "weights.safetensors"
RATE: Final = "0.001"
FASTER: Final = "0.0011"
"""The control's rate in the first half."""
UNFELT: Final = "1e-30"
"""A learning rate whose steps are lost in the rounding of any weight but 0."""
COMMON: Final = (
    *(
        "--task",
        "bench.workloads.layouts:LargeNumbers",
        "--global-batch",
        "8",
        "--batch-slices",
        "4",
        "--warmup-steps",
        "5",
    ),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf", "--epochs", "100"),
    *("--log-steps", "1", "--log-json", "--threads", "1", "--device", "cpu"),
)


def cross(report: Report, options: Options) -> None:
    """Every pair of layouts with a control, and the digest of every export and of every way back."""
    layouts, steps = (QUICK_LAYOUTS, QUICK_STEPS) if options.quick else (LAYOUTS, STEPS)
    with tempfile.TemporaryDirectory(prefix="ddp-bench-layouts-") as name:
        directory = Path(name)
        _pairs(directory, layouts, steps, report, options)
        _compare_export_digests(directory, layouts, steps // 2, report, options)


def _pairs(directory: Path, layouts: Sequence[str], steps: int, report: Report, options: Options) -> None:
    alone = train(directory, "", steps)
    worst = [_pairs_of(directory, before, layouts, alone, options) for before in layouts]
    held = sum(distance <= BAR for distances in worst for distance in distances)
    report.figure("layout_pairs_count", held)
    report.figure("layout_pairs_worst_loss_difference_ratio", max(max(distances) for distances in worst))
    report.at_least(f"pairs of {len(layouts)} layouts of which one goes on from the other", held, len(layouts) ** 2)
    (control,) = _pairs_of(directory, layouts[-1], layouts[:1], alone, options, rate=FASTER)
    report.baseline("layout_pairs_control_loss_difference_ratio", control)
    report.at_least("distance of losses after a first half that was learned faster, the control", control, 10 * BAR)


def _compare_export_digests(
    directory: Path, layouts: Sequence[str], step: int, report: Report, options: Options
) -> None:
    train(directory, "", step, store=directory / "one")
    digests = {"one process": export(directory, directory / "one")}
    weights = (directory / EXPORTED).rename(directory / "begun.safetensors")
    for layout in layouts:
        digests[layout] = _written_under(
            directory, layout, step + 1, store=_copy(directory / "one", directory / "copy")
        )
        shutil.rmtree(directory / "copy")
        back = _written_under(directory, layout, 1, "--init-from", str(weights), store=directory / "copy")
        digests[f"{layout}, begun with an export"] = back
        shutil.rmtree(directory / "copy")
    for source, digest in digests.items():
        options.progress(f"exported after {source}: {digest}")
    different = len(set(digests.values()))
    report.figure("layout_export_digests_count", different)
    report.at_most(f"different exports of one state, written {len(digests)} ways", different, 1)


def _pairs_of(
    directory: Path,
    before: str,
    layouts: Sequence[str],
    alone: Mapping[int, float],
    options: Options,
    *,
    rate: str = RATE,
) -> list[float]:
    """Return each resumed run's distance from the one process, infinite if it fails, for this layout's checkpoint."""
    stored, half = directory / "stored", len(alone) // 2
    train(directory, before, half, rate=rate, store=stored)
    found = []
    for after in layouts:
        losses = train(directory, after, len(alone), store=_copy(stored, directory / "copy"))
        went_on = sorted(losses) == list(range(half + 1, len(alone) + 1))
        found.append(max(abs(losses[step] / alone[step] - 1) for step in losses) if went_on else float("inf"))
        options.progress(f"{before} at a rate of {rate} -> {after}: {found[-1]:.1e} away from one process at the worst")
    shutil.rmtree(stored)
    return found


def _written_under(directory: Path, layout: str, steps: int, *flags: str, store: Path) -> str:
    """Digest of what is exported once this layout has written the state that it began with."""
    train(directory, layout, steps, *flags, rate=UNFELT, store=store)
    return export(directory, store)


def export(directory: Path, checkpoints: Path) -> str:
    """SHA-256 of the weights of the newest checkpoint as one safetensors file."""
    file = directory / EXPORTED
    _run(directory, ["checkpoint", "export", str(checkpoints), "--to", str(file)])
    return hashlib.sha256(file.read_bytes()).hexdigest()


def train(
    directory: Path, layout: str, steps: int, *flags: str, rate: str = RATE, store: Path | None = None
) -> Mapping[int, float]:
    """Losses of a worker group under this layout, by the number of the step; of one process where it is empty."""
    world = Layout.parse(layout).world if layout else 1
    launch = ["launch", "--standalone", "--nproc-per-node", str(world), "-m", "ddp_trainer", "train"]
    keeping = () if store is None else ("--checkpoint-dir", str(store))
    laid = ("--parallel", layout) if layout else ()
    options = (*flags, "--learning-rate", rate, "--max-steps", str(steps))
    output = _run(directory, [*launch, *COMMON, *options, *laid, *keeping])
    events = [json.loads(line) for line in output.splitlines()]
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
