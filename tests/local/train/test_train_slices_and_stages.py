"""A model in slices or in stages learns what one process does, and each goes on from the other's checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.local.workloads.train_group import WorkerGroup

FLAGS = (
    *("--task", "tests.local.workloads.train_layouts:Numbers", "--log-steps", "1", "--threads", "1", "--device", "cpu"),
    *("--global-batch", "8", "--batch-slices", "2", "--learning-rate", "0.001", "--warmup-steps", "0"),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf"),
)


def learn(directory: Path, world: int, *flags: str) -> tuple[list[float], dict[str, Any]]:
    """Losses of the steps of a run, and its summary."""
    directory.mkdir()
    every = [*FLAGS, "--summary", str(directory / "summary"), *flags]
    with WorkerGroup(world, every, directory=directory) as group:
        losses = [event["loss"] for event in group.events() if event["event"] == "step"]
        assert group.finish() == [0] * world, group.stderr()
    return losses, json.loads((directory / "summary").read_text())


def test_slices_go_on_as_stages_and_learn_what_one_process_does(tmp_path: Path) -> None:
    """With a partial step, at the end of the epoch, on the way."""
    losses, summary = learn(tmp_path / "one", 1, "--max-steps", "10")
    saved = ("--checkpoint-dir", str(tmp_path / "kept"))
    sliced, _ = learn(tmp_path / "slices", 2, *saved, "--max-steps", "5", "--parallel", "tp=2")
    pipelined = ("--parallel", "pp=2", "--pipeline-schedule", "zero-bubble-v", "--micro-batch", "2")
    staged, last = learn(tmp_path / "stages", 2, *saved, "--max-steps", "10", *pipelined)
    assert [*sliced, *staged] == pytest.approx(losses, rel=1e-4)
    assert last["metrics"] == pytest.approx(summary["metrics"], rel=1e-4)
    assert {"steps": 10, "samples_lost": 0, "samples_repeated": 0}.items() <= last.items()
