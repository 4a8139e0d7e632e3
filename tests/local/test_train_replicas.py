"""Ranks of a spread model die, and the others go on with what they hold: nothing is lost, and nothing is read anew."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch_harness import Running, Stage, stage_of
from test_launch_reform import QUICKLY, hurry, workers_of

from tests.local import train_half_voted

STEPS = 16
TASK = ("--task", f"{train_half_voted.__name__}:SlowNumbers", "--global-batch", "16", "--shards", "4", "--epochs", "90")
PROGRAM = ("-m", train_half_voted.__name__, *TASK, "--max-steps", str(STEPS), "--log-steps", "1", "--log-json")
FLAGS = (*PROGRAM, "--clip-norm", "0.2", "--schedule", "constant", "--evaluate-every", "99")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from stage_of(tmp_path)


def losses(running: Running) -> dict[int, float]:
    """Of each step that was told, the last of each."""
    told = [json.loads(line) for line in running.lines if '"event": "step"' in line]
    return {each["step"]: each["loss"] for each in told}


def summary(running: Running) -> dict[str, Any]:
    (ended,) = (json.loads(line) for line in running.lines if '"event": "summary"' in line)
    return dict(ended["summary"])


def test_a_lost_rank_and_a_lost_verdict_cost_two_replicas_of_two_shards_no_step(stage: Stage) -> None:
    env = {**QUICKLY, "HURRY": str(stage.folder / "hurry"), "PAUSE": "0.05"}
    run = stage.launch(
        "--nproc-per-node", "4", "--max-restarts", "9", *FLAGS, "--parallel", "replicate=2,shard=2", **env
    )
    # After the verdict that rank 1 did not hear.
    run.line(f'"event": "started".*"resumed_step": {train_half_voted.UNHEARD + 1}')
    seen = len(run.lines)
    run.line('"event": "step"', after=seen)
    survivors, victim = workers_of(run)[:3], workers_of(run)[3]
    subprocess.run(["kill", "-9", str(victim)], check=True)
    run.line('"event": "started"', after=seen)
    assert workers_of(run)[:3] == survivors
    hurry(stage)
    assert run.code() == 0, run.output
    assert {"samples_lost": 0, "samples_repeated": 0, "lost_steps": 0, "steps": STEPS}.items() <= summary(run).items()
    alone = stage.launch("--nproc-per-node", "1", *FLAGS, **env)
    assert alone.code() == 0, alone.output
    assert losses(run) == pytest.approx(losses(alone), rel=1e-4)
    assert sorted(losses(run)) == list(range(1, STEPS + 1))
