"""The result of a run does not depend on the number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.workloads.train_group import WorkerGroup

NORMALIZED = "tests.support.train_builders:NormalizedLines"
FLAGS = ("--global-batch", "32", "--max-steps", "50", "--log-steps", "1", "--warmup-steps", "5")


def losses_at(world: int, directory: Path) -> tuple[list[float], dict[str, float]]:
    with WorkerGroup(world, [*FLAGS, "--summary", str(directory / "summary.json")], directory=directory) as group:
        events = list(group.events())
        assert group.finish() == [0] * world, group.stderr()
    steps = [event["loss"] for event in events if event["event"] == "step"]
    (evaluated, last) = [event["metrics"] for event in events if event["event"] == "evaluated"]
    assert evaluated["loss"] > last["loss"]
    return steps, last


@pytest.mark.any_torch
def test_every_loss_equals_that_of_one_rank_up_to_rounding(tmp_path: Path) -> None:
    losses_alone, metrics_alone = losses_at(1, tmp_path)
    losses, metrics = losses_at(3, tmp_path)
    assert len(losses) == 50
    assert losses == pytest.approx(losses_alone, rel=1e-4)
    assert metrics == pytest.approx(metrics_alone, rel=1e-3)
    assert losses[-1] < losses[0] / 2


def test_running_statistics_and_a_nearly_empty_last_step_do_not_depend_on_the_world(tmp_path: Path) -> None:
    flags = ["--task", NORMALIZED, "--global-batch", "16", "--batch-slices", "4", "--epochs", "4", "--log-steps", "1"]
    # A bias before a normalization has no gradient but rounding, which AdamW would blow up to full steps.
    flags += ["--optimizer", "sgd"]
    seen = []
    for world in (1, 3):
        with WorkerGroup(world, flags, directory=tmp_path) as group:
            events = list(group.events())
            assert group.finish() == [0] * world, group.stderr()
        losses = [event["loss"] for event in events if event["event"] == "step"]
        metrics = [event["metrics"] for event in events if event["event"] == "evaluated"]
        seen.append((losses, metrics))
    assert len(seen[0][0]) == 12
    assert seen[1][0] == pytest.approx(seen[0][0], rel=1e-4)
    for alone, together in zip(seen[0][1], seen[1][1], strict=True):
        assert together == pytest.approx(alone, rel=1e-4, abs=1e-6)
    assert seen[0][1][-1]["1.num_batches_tracked"] == 12
