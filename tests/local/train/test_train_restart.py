"""Ranks die and the world changes size, twice within one epoch; every sample still counts exactly once."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.local.workloads import train_logged
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_outcome import fail

SAMPLES, BATCH = 150, 4
STEPS_PER_EPOCH = 38


def start(world: int, generation: int, directory: Path, checkpoints: Path, logs: Path) -> WorkerGroup:
    directory.mkdir()
    flags = ["--epochs", "2", "--global-batch", str(BATCH), "--batch-slices", "4", "--log-steps", "1"]
    flags += ["--checkpoint-dir", str(checkpoints), "--checkpoint-steps", "5", "--summary", str(directory / "summary")]
    return WorkerGroup(
        world,
        flags,
        directory=directory,
        program=("-m", train_logged.__name__),
        generation=generation,
        env={"FETCH_LOG": str(logs)},
    )


@pytest.mark.any_torch
def test_two_kills_in_one_epoch_lose_and_repeat_no_sample(tmp_path: Path) -> None:
    checkpoints, logs = tmp_path / "checkpoints", tmp_path / "logs"
    reference, reference_logs = tmp_path / "reference", tmp_path / "reference-logs"
    logs.mkdir()
    reference_logs.mkdir()
    with start(1, 0, tmp_path / "whole", reference, reference_logs) as group:
        assert group.finish() == [Exit.SUCCESS], group.stderr()

    for generation, (world, step, victim) in enumerate([(3, 8, 1), (2, 22, 0)]):
        with start(world, generation, tmp_path / f"generation{generation}", checkpoints, logs) as group:
            group.wait_for_step(step)
            group.ranks[victim].send_signal(signal.SIGKILL)
            codes = group.finish()
        assert codes[victim] == -signal.SIGKILL
        survivors = [code for rank, code in enumerate(codes) if rank != victim]
        assert survivors == [Exit.RENDEZVOUS_LOST] * (world - 1), group.stderr()
    with start(3, 2, tmp_path / "generation2", checkpoints, logs) as group:
        assert group.finish() == [Exit.SUCCESS] * 3, group.stderr()

    steps = train_logged.surviving_steps(logs)
    assert sorted(steps) == list(range(1, 2 * STEPS_PER_EPOCH + 1))
    for epoch in range(2):
        first = epoch * STEPS_PER_EPOCH + 1
        counts = Counter(sample for step in range(first, first + STEPS_PER_EPOCH) for sample in steps[step])
        assert counts == dict.fromkeys(range(SAMPLES), 1)
    alone = train_logged.surviving_steps(reference_logs)
    assert {step: sorted(ids) for step, ids in steps.items()} == {step: sorted(ids) for step, ids in alone.items()}

    summary = json.loads((tmp_path / "generation2" / "summary").read_text())
    assert (summary["samples_lost"], summary["samples_repeated"]) == (0, 0)
    assert summary["lost_steps"] > 0
    assert 0 < summary["goodput"] < 1
    assert abs(sum(summary["spent"].values()) - summary["seconds"]) < 0.01 * summary["seconds"]
    assert summary["spent"]["restart"] > 0
    assert summary["steps"] == 2 * STEPS_PER_EPOCH


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
