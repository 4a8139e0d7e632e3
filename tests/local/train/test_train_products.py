"""A model that is cut in several ways learns what one process does, and resumes under the next layout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.time_classes import Phase, Wait
from ddp_trainer.metrics.storage.mmap_store import RANK, read
from tests.local.workloads.train_forked import Run, losses_of

FLAGS = (
    *("--task", "tests.local.workloads.train_layouts:Numbers", "--log-steps", "1", "--threads", "1", "--device", "cpu"),
    *("--global-batch", "8", "--batch-slices", "4", "--micro-batch", "2", "--learning-rate", "0.001"),
    *("--warmup-steps", "0"),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf"),
)
LAYOUTS = (("shard=2,tp=2", ()), ("shard=2,tp=2,pp=2", ("--pipeline-schedule", "zero-bubble-v")))
"""Each resumes from the one before; in the second, one rank has the token embedding in two stages."""
EACH = 2
"""Steps of a layout."""


def run(directory: Path, steps: int, flags: Sequence[str], *, world: int) -> Run:
    """Train, resuming from the checkpoints in the directory."""
    saved = ("--checkpoint-dir", str(directory), "--summary", str(directory.with_suffix(".json")))
    return Run(world, [*FLAGS, *saved, "--max-steps", str(steps), *flags])


@pytest.mark.any_torch
def test_each_product_goes_on_where_another_one_ended_and_learns_what_one_process_does(tmp_path: Path) -> None:
    alone, cut, steps = tmp_path / "alone", tmp_path / "cut", EACH * len(LAYOUTS)
    runs = [run(alone, steps, (), world=1)]
    for number, (layout, flags) in enumerate(LAYOUTS, start=1):
        runs.append(run(cut, EACH * number, ["--parallel", layout, *flags], world=Layout.parse(layout).world))
    losses = list(chain(*losses_of(tmp_path, *runs, env={Env.METRICS_DIR: str(tmp_path)})))
    assert losses[steps:] == pytest.approx(losses[:steps], rel=1e-4)
    wanted, last = (json.loads(item.with_suffix(".json").read_text()) for item in (alone, cut))
    assert last["metrics"] == pytest.approx(wanted["metrics"], rel=1e-4)
    assert {"steps": steps, "samples_lost": 0, "samples_repeated": 0}.items() <= last.items()
    demand_waits(tmp_path)


def demand_waits(directory: Path) -> None:
    """Assert waiting times of stages in pieces: for one another, weights and sums of gradients."""
    for rank in range(4, 8):  # of the second layout alone
        values = read(directory / f"rank-{rank}.board", RANK).values
        waited = [values[cell(Metric.WAIT_SECONDS, wait)] for wait in Wait]
        assert min(waited) > 0.0
        assert sum(waited) <= values[cell(Metric.PHASE_SECONDS, Phase.COMM_EXPOSED)]


def test_weights_that_each_rank_has_drawn_by_itself_are_those_of_the_first_that_has_them(tmp_path: Path) -> None:
    """Replicas, uncut weights of slices, and the two stages with the token embedding."""
    unseeded = ("--task", "tests.local.workloads.train_layouts:Unseeded")
    layouts = ("replicate=1", "replicate=2,tp=2", "replicate=2,pp=2")
    runs = [
        run(tmp_path / layout, EACH, [*unseeded, "--parallel", layout], world=Layout.parse(layout).world)
        for layout in layouts
    ]
    alone, sliced, staged = losses_of(tmp_path, *runs)
    assert sliced == pytest.approx(alone, rel=1e-4)
    assert staged == pytest.approx(alone, rel=1e-4)
