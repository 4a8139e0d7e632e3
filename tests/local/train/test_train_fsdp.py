"""A run whose weights lie in pieces on its ranks learns what one process does, and each resumes from the other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_outcome import COMMON, STEPS, TASKS, train

FLAGS = (
    *("--schedule", "constant", "--clip-norm", "0.2", "--batch-slices", "3", "--checkpoint-steps", "6"),
    *("--keep", "9"),
)


def test_one_process_and_two_shards_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    """Three slices on two ranks: one of them makes an empty pass in every step."""
    undisturbed = train(tmp_path / "whole", [*FLAGS, "--checkpoint-dir", str(tmp_path / "all")], world=1)
    shutil.copytree(tmp_path / "all" / "step-00000006", tmp_path / "kept" / "step-00000006")
    saved = ("--checkpoint-dir", str(tmp_path / "kept"))
    every = [*COMMON, *FLAGS, *saved, "--task", f"{TASKS}DyingDigits", "--log-steps", "1", "--parallel", "shard=2"]
    with WorkerGroup(2, every, directory=tmp_path, env={"FATAL_BATCH": "14"}) as group:
        cut = [event["loss"] for event in group.events() if event["event"] == "step"]
        assert group.finish()[1] == -9
    assert len(cut) >= 8
    assert cut == pytest.approx(undisturbed.losses[6 : 6 + len(cut)], rel=1e-4)
    rest = train(tmp_path / "rest", [*FLAGS, *saved], world=1)
    assert 0 < len(rest.losses) <= len(undisturbed.losses) - 12, "the shards saved after six steps"
    assert rest.losses == pytest.approx(undisturbed.losses[-len(rest.losses) :], rel=1e-4)
    assert {"samples_lost": 0, "samples_repeated": 0, "steps": STEPS}.items() <= rest.summary.items()
