"""A model that is cut in several ways learns what one process does, and resumes under the next layout."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.time_classes import Phase, Wait
from ddp_trainer.metrics.storage.mmap_store import RANK, read
from tests.local.workloads.train_forked import Run, losses_of, run

LAYOUTS = (
    *(["replicate=1"], ["shard=2,tp=2"], ["shard=2,tp=2,pp=2", "--pipeline-schedule", "zero-bubble-v"]),
    ["replicate=1"],
)
"""Each resumes from the one before; in the third, one rank has the token embedding in two stages."""
EACH = 2
"""Steps of a layout."""


def saving(directory: Path, steps: int, *flags: str) -> Run:
    """Train, resuming from the checkpoints in the directory."""
    saved = ("--checkpoint-dir", str(directory), "--summary", str(directory.with_suffix(".json")))
    return run("--batch-slices", "4", "--micro-batch", "2", *saved, "--max-steps", str(steps), *flags)


@pytest.mark.any_torch
def test_each_product_goes_on_where_another_one_ended_and_learns_what_one_process_does(tmp_path: Path) -> None:
    alone, cut, steps = tmp_path / "alone", tmp_path / "cut", EACH * len(LAYOUTS)
    parts = [saving(cut, EACH * number, "--parallel", *flags) for number, flags in enumerate(LAYOUTS, start=1)]
    runs = (saving(alone, steps), *parts)
    losses = list(chain(*losses_of(tmp_path, *runs, env={Env.METRICS_DIR: str(tmp_path)})))
    assert losses[steps:] == pytest.approx(losses[:steps], rel=1e-4)
    wanted, last = (json.loads(item.with_suffix(".json").read_text()) for item in (alone, cut))
    assert last["metrics"] == pytest.approx(wanted["metrics"], rel=1e-4)
    assert {"steps": steps, "samples_lost": 0, "samples_repeated": 0}.items() <= last.items()
    demand_waits(tmp_path)


def demand_waits(directory: Path) -> None:
    """Assert waiting times of stages in pieces: for one another, weights and sums of gradients."""
    for rank in range(4, 8):  # of the third layout alone
        values = read(directory / f"rank-{rank}.board", RANK).values
        waited = [values[cell(Metric.WAIT_SECONDS, wait)] for wait in Wait]
        assert min(waited) > 0.0
        assert sum(waited) <= values[cell(Metric.PHASE_SECONDS, Phase.COMM_EXPOSED)]


def test_weights_that_each_rank_has_drawn_by_itself_are_those_of_the_first_that_has_them(tmp_path: Path) -> None:
    """Replicas, uncut weights of slices, and the two stages with the token embedding."""
    unseeded = ("--task", "tests.local.workloads.train_layouts:Unseeded")
    layouts = ("replicate=1", "replicate=2,tp=2", "replicate=2,pp=2")
    runs = [saving(tmp_path / layout, EACH, *unseeded, "--parallel", layout) for layout in layouts]
    alone, sliced, staged = losses_of(tmp_path, *runs)
    assert sliced == pytest.approx(alone, rel=1e-4)
    assert staged == pytest.approx(alone, rel=1e-4)
