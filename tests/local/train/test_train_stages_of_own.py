"""Customized stages: frozen layers, an optimizer with groups, modules of a stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.train.checkpoint.checkpoint_files import directories, read, unpack
from tests.local.workloads.train_forked import Run, losses_of, run

STAGES = ("--parallel", "pp=2", "--micro-batch", "2")


def run_of(task: str, *flags: str) -> Run:
    return run("--task", f"tests.local.workloads.train_layouts:{task}", *flags)


def optimizer_in(directory: Path) -> dict[str, Any]:
    """Return the optimizer state of the newest checkpoint."""
    found: dict[str, Any] = unpack(read(next(iter(directories(directory)))))["optimizer"]
    return found


@pytest.mark.timeout(600)
def test_stages_learn_and_are_evaluated_as_a_person_meant_them(tmp_path: Path) -> None:
    """One process and two stages resume from each other's checkpoints, in pieces or written by one rank."""
    one, two, total = tmp_path / "one", tmp_path / "two", tmp_path / "whole"
    task, numbers = "FrozenAndGrouped", [tmp_path / "alone.json", tmp_path / "staged.json"]
    half, still = ("--precision", "fp16", "--max-steps", "2"), ("--learning-rate", "1e-12", "--max-steps", "1")
    by_one_rank = ("--checkpoint-dir", str(total), "--checkpoint-scope", "pod")
    losses = losses_of(
        tmp_path,
        run_of(task, "--max-steps", "2", "--checkpoint-dir", str(one)),
        run_of(task, "--max-steps", "2", "--checkpoint-dir", str(two), *STAGES),
        run_of(task, "--max-steps", "2", *by_one_rank, *STAGES),
        run_of(task, "--max-steps", "3", "--checkpoint-dir", str(one), *STAGES),
        run_of(task, "--max-steps", "3", "--checkpoint-dir", str(two)),
        run_of(task, "--max-steps", "3", *by_one_rank),
        run_of("Frozen", *half),
        run_of("Frozen", *half, *STAGES),
        run_of("Numbers", *still, "--summary", str(numbers[0])),
        run_of("DroppedBetween", *still, *STAGES, "--summary", str(numbers[1])),
    )
    for like, other in ((0, 1), (0, 2), (3, 4), (3, 5)):
        assert losses[other] == pytest.approx(losses[like], rel=1e-5)
    saved = optimizer_in(one)
    assert [len(group["params"]) for group in saved["param_groups"]] == [5, 12]
    assert len(saved["state"]) == 17
    for other in map(optimizer_in, (two, total)):
        assert other["param_groups"] == saved["param_groups"]
        torch.testing.assert_close(other["state"], saved["state"], rtol=1e-4, atol=1e-7)
    assert losses[7] == pytest.approx(losses[6], rel=1e-4), "a stage without gradients scales losses, too"
    assert losses[9] != pytest.approx(losses[8], rel=1e-3), "it drops out while it learns"
    alone, staged = (json.loads(number.read_text())["metrics"] for number in numbers)
    assert staged == pytest.approx(alone, rel=1e-6)
