"""A model that is cut in several ways at once learns what one process does, and goes on under the next layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ddp_trainer.layout import Layout

FLAGS = (
    *("--task", "tests.local.train_layouts:Numbers", "--log-steps", "1", "--threads", "1", "--device", "cpu"),
    *("--global-batch", "8", "--shards", "4", "--learning-rate", "0.001", "--warmup-steps", "0"),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf"),
)
LAYOUTS = (("tp=2,shard=2", ("--micro-batch", "1")),)
"""One after the other, each for a part of an epoch and the first step of the next: layouts, and flags of their own."""
EACH = 3


def learn(directory: Path, runs: Sequence[tuple[int, Sequence[str]]]) -> tuple[list[float], dict[str, float]]:
    """Losses of the steps of runs that go on from one another, and what the last one was tested to."""
    kept = ("--checkpoint-dir", str(directory / "kept"), "--summary", str(directory / "summary"))
    directory.mkdir()
    every = [json.dumps([world, [*FLAGS, *kept, *flags]]) for world, flags in runs]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
    program = [sys.executable, "-m", "tests.local.train_forked", *every]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    summary = json.loads((directory / "summary").read_text())
    assert {"samples_lost": 0, "samples_repeated": 0}.items() <= summary.items()
    return [event["loss"] for event in events if event["event"] == "step"], summary["metrics"]


def test_each_product_goes_on_where_another_one_ended_and_learns_what_one_process_does(tmp_path: Path) -> None:
    steps = EACH * len(LAYOUTS)
    alone, tested = learn(tmp_path / "alone", [(1, ["--max-steps", str(steps)])])
    runs = [
        (Layout.parse(layout).world, ["--parallel", layout, "--max-steps", str(EACH * number), *flags])
        for number, (layout, flags) in enumerate(LAYOUTS, start=1)
    ]
    losses, last = learn(tmp_path / "products", runs)
    assert losses == pytest.approx(alone, rel=1e-4)
    assert last == pytest.approx(tested, rel=1e-4)
