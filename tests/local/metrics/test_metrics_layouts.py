"""Ranks that share a model report waiting times and computed work in every layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.time_classes import Phase, Wait
from ddp_trainer.metrics.storage.mmap_store import RANK, read
from ddp_workloads.gpt import Gpt
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_layouts import Numbers

STEPS, BATCH = 4, 8
FLAGS = (
    *("--task", "tests.local.workloads.train_layouts:Numbers"),
    *("--threads", "1", "--device", "cpu", "--batch-slices", "2"),
    *("--global-batch", str(BATCH), "--max-steps", str(STEPS), "--checkpoint-seconds", "inf"),
)


@pytest.mark.parametrize(
    ("layout", "waits"),
    [("shard=2", {Wait.ALL_GATHER, Wait.REDUCE_SCATTER}), ("pp=2", {Wait.STAGE})],
    ids=["shard", "pp"],
)
def test_a_rank_of_a_layout_tells_what_it_waits_for(tmp_path: Path, layout: str, waits: set[Wait]) -> None:
    flags = [*FLAGS, "--parallel", layout, "--micro-batch", "2"]
    variables = {Env.METRICS_DIR.value: str(tmp_path)}
    with WorkerGroup(2, flags, directory=tmp_path, program=("-m", "ddp_trainer", "train"), env=variables) as group:
        assert group.finish() == [0, 0], group.stderr()
    boards = [read(tmp_path / f"rank-{rank}.board", RANK) for rank in range(2)]
    assert boards[0].identity["parallelism"] == layout
    for values in (file.values for file in boards):
        measured = {wait for wait in Wait if cell(Metric.WAIT_SECONDS, wait) in values}
        assert measured == waits
        waited = [values[cell(Metric.WAIT_SECONDS, wait)] for wait in measured]
        assert min(waited) > 0.0
        assert sum(waited) <= values[cell(Metric.PHASE_SECONDS, Phase.COMM_EXPOSED)]
        assert (values[Metric.SAMPLED_STEPS] > 0) == (layout == "shard=2"), "stages do different work"
    model = Gpt(
        vocabulary=Numbers.vocabulary, window=Numbers.window, layers=4, heads=Numbers.heads, width=Numbers.width
    )
    assert sum(file.values[Metric.MODEL_FLOPS] for file in boards) == STEPS * BATCH * model.flops_per_sample()
