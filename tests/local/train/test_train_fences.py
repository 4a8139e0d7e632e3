"""Runs whose store had a wrong clock, as real processes: a store, a launcher and the reference trainer."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.launch_harness import Running, Stage

CLOCK = """
import os, sys, time
if os.environ.get("WHOSE_CLOCK") in sys.orig_argv:
    right = time.time
    time.time = lambda: right() + float(os.environ["SECONDS_AHEAD"])
"""
"""``sitecustomize.py``: the clock of the store or of the launcher is ahead, and that of the worker is right."""
YEAR_SECONDS = 365 * 86_400


def trained(stage: Stage, steps: int) -> Running:
    """A run of the same id and directory, up to this many steps."""
    flags = ["--max-steps", str(steps), "--checkpoint-steps", "2", "--checkpoint-dir", str(stage.folder / "c")]
    program = ["-m", "ddp_trainer", "train", "--task", "digits", "--global-batch", "32", *flags]
    return stage.agent(0, *program, nnodes="1", restarts=0, OMP_NUM_THREADS="1", DDP_RUN_ID="run")


def fence_ahead_seconds(stage: Stage) -> float:
    claim = json.loads((stage.folder / "c" / "CLAIM").read_text())
    return float(claim["fence"] / 1000 - time.time())


def steps(stage: Stage) -> list[str]:
    return sorted(path.name for path in (stage.folder / "c").glob("step-*"))


@pytest.mark.parametrize(("whose", "least_ahead"), [("store", -3600), ("launch", YEAR_SECONDS - 3600)])
def test_after_a_clock_that_was_a_year_ahead_the_next_run_saves(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, whose: str, least_ahead: int
) -> None:
    (stage.folder / "sitecustomize.py").write_text(CLOCK)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(stage.folder))
        patch.setenv("SECONDS_AHEAD", str(YEAR_SECONDS))
        patch.setenv("WHOSE_CLOCK", whose)
        ahead = stage.store()
        first = trained(stage, 2)
        assert first.code() == 0, first.output
    assert least_ahead < fence_ahead_seconds(stage) < least_ahead + 7200  # fences follow the nodes, not the store
    ahead.close()
    stage.store()
    second = trained(stage, 4)
    assert second.code() == 0, second.output
    assert steps(stage) == ["step-00000002", "step-00000004"]
    assert fence_ahead_seconds(stage) < 3600
