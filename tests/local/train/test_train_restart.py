"""Ranks die and the world changes size; every sample still counts exactly once, also of a hand-written loop."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ddp_trainer.common.constants import Env, Exit
from tests.local.workloads import train_logged, train_reformed
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_outcome import fail
from tests.local.workloads.train_reformed import BATCH, STEPS_PER_EPOCH, demand_every_sample_once, samples_of_steps


def start(program: ModuleType, world: int, generation: int, place: Path, *, epochs: int = 2) -> WorkerGroup:
    directory, logs = place / str(generation), place / "logs"
    directory.mkdir(parents=True)
    logs.mkdir(exist_ok=True)
    flags = ["--epochs", str(epochs), "--global-batch", str(BATCH), "--batch-slices", "4", "--log-steps", "1"]
    of_loop = {"EPOCHS": str(epochs), "SAVE_STEPS": "5", "HURRY": str(place)}
    return WorkerGroup(
        world,
        [*flags, "--checkpoint-steps", "5"],
        directory=directory,
        program=("-m", program.__name__),
        generation=generation,
        env={"FETCH_LOG": str(logs), Env.CHECKPOINT_DIR: str(place / "checkpoints"), **of_loop},
    )


def finished(group: WorkerGroup) -> dict[str, Any]:
    """Return the summary of a run that succeeds."""
    (summary,) = [event["summary"] for event in group.events() if event["event"] == "summary"]
    assert set(group.finish()) == {Exit.SUCCESS}, group.stderr()
    return dict(summary)


@pytest.mark.any_torch
@pytest.mark.parametrize("program", [train_logged, train_reformed], ids=["trainer", "own-loop"])
def test_two_kills_and_resizes_lose_and_repeat_no_sample(program: ModuleType, tmp_path: Path) -> None:
    with start(program, 1, 0, tmp_path / "whole") as group:
        undisturbed = finished(group)
    for generation, (world, step, victim) in enumerate([(3, 8, 1), (2, 15, 0)]):
        with start(program, world, generation, tmp_path / "killed") as group:
            group.wait_for_step(step)
            group.ranks[victim].send_signal(signal.SIGKILL)
            codes = group.finish()
        assert codes.pop(victim) == -signal.SIGKILL
        assert codes == [Exit.RENDEZVOUS_LOST] * (world - 1), group.stderr()
    with start(program, 3, 2, tmp_path / "killed") as group:
        summary = finished(group)

    demand_every_sample_once(tmp_path / "killed/logs", 2)
    assert samples_of_steps(tmp_path / "killed/logs") == samples_of_steps(tmp_path / "whole/logs")
    wanted = {"samples_lost": 0, "samples_repeated": 0, "steps": 2 * STEPS_PER_EPOCH}
    assert wanted.items() <= summary.items()
    assert summary["lost_steps"] > 0
    assert 0 < summary["goodput"] < 1
    assert abs(sum(summary["spent"].values()) - summary["seconds"]) < 0.01 * summary["seconds"]
    assert summary["spent"]["restart"] > 0
    # The optimizer enlarges what sums of other orders round differently.
    assert summary["loss"] == pytest.approx(undisturbed["loss"], rel=1e-2)


def test_a_peer_that_vanishes_is_named_in_one_sentence_and_in_the_error_file(tmp_path: Path) -> None:
    with WorkerGroup(2, ["--epochs", "300", "--log-steps", "1"], directory=tmp_path) as group:
        group.wait_for_step(3)
        group.ranks[1].kill()
        assert group.finish() == [Exit.RENDEZVOUS_LOST, -signal.SIGKILL]
        errors = group.stderr(0)
    assert errors.startswith("error: Rank 0 lost a peer in step ")
    assert len(errors.splitlines()) == 1
    message = json.loads((tmp_path / "error.0.json").read_text())["message"]
    assert message["message"].startswith("PeerLost: Rank 0 lost a peer in step ")
    assert message["extraInfo"]["timestamp"].isdecimal()
    assert "Traceback" in message["extraInfo"]["py_callstack"]


def test_a_peer_that_dies_before_ddps_second_forward_pass_is_lost_and_no_error_of_the_task(tmp_path: Path) -> None:
    codes, errors = fail(tmp_path, ["--batch-slices", "2"], task="DyingDigits", env={"FATAL_BATCH": "2"})
    assert codes == [Exit.RENDEZVOUS_LOST, -signal.SIGKILL], errors
    assert errors.startswith("error: Rank 0 lost a peer in step 1: ")
