"""A run whose weights lie in pieces on its ranks learns what one process does, and each goes on from the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.local.train_group import WorkerGroup
from tests.local.train_outcome import COMMON, STEPS, TASKS, train

FLAGS = (
    *("--schedule", "constant", "--clip-norm", "0.2", "--batch-slices", "3", "--checkpoint-steps", "6"),
    *("--keep", "9"),
)


def test_one_process_and_two_shards_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    """Three slices on two ranks: one of them makes an empty pass in every step."""
    whole = train(tmp_path / "whole", [*FLAGS, "--checkpoint-dir", str(tmp_path / "all")], world=1)
    shutil.copytree(tmp_path / "all" / "step-00000006", tmp_path / "kept" / "step-00000006")
    kept = ("--checkpoint-dir", str(tmp_path / "kept"))
    every = [*COMMON, *FLAGS, *kept, "--task", f"{TASKS}PlainDigits", "--log-steps", "1", "--parallel", "shard=2"]
    with WorkerGroup(2, every, directory=tmp_path) as group:
        events = group.events()
        cut = [next(event["loss"] for event in events if event["event"] == "step") for _ in range(8)]
        group.ranks[1].kill()
        assert group.finish()[1] == -9
    assert cut == pytest.approx(whole.losses[6:14], rel=1e-4)
    rest = train(tmp_path / "rest", [*FLAGS, *kept], world=1)
    assert rest.losses == pytest.approx(whole.losses[12:], rel=1e-4)
    assert {"samples_lost": 0, "samples_repeated": 0, "steps": STEPS}.items() <= rest.summary.items()
