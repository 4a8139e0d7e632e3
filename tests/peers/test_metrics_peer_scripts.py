"""Scripts of other libraries, unchanged: their steps and samples are counted to the last one."""

from __future__ import annotations

import importlib.util

import pytest
from prometheus_client import generate_latest

from ddp_trainer.metrics.serve.collector import Exposition
from tests.support.launch_harness import SCRIPTS, Stage
from tests.support.metrics_processes import Scrape


@pytest.mark.parametrize(
    ("library", "script", "steps", "samples"),
    [
        ("lightning", "lightning_trainer.py", 64, 2048),
        ("accelerate", "accelerate_loop.py", 64, 2048),
        ("transformers", "hf_trainer.py", 16, 128),
    ],
)
def test_every_step_and_sample_of_each_rank_is_counted(
    stage: Stage, library: str, script: str, steps: int, samples: int
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed here; make test-peers installs it in build/peers.")
    boards = stage.folder / "boards"
    flags = ["--nproc-per-node", "2", str(SCRIPTS / script), "--epochs", "2", "--output", str(stage.folder)]
    run = stage.launch(*flags, DDP_METRICS_DIR=str(boards), DDP_METRICS_PORT=str(stage.port), OMP_NUM_THREADS="1")
    assert run.code() == 0, run.output
    assert "metrics:" not in run.output
    page = Scrape(generate_latest(Exposition(boards, library)).decode())
    for rank in ("0", "1"):
        counted = page.value("ddp_steps_total", rank=rank), page.value("ddp_samples_total", rank=rank)
        assert counted == (2 * steps, 2 * samples)
        for phase in ("data_wait", "forward", "backward", "optimizer", "comm_exposed"):
            assert page.value("ddp_step_phase_seconds_total", rank=rank, phase=phase), phase
        assert page.value("ddp_sampled_steps_total", rank=rank)
        assert page.value("ddp_sampled_comm_exposed_seconds_total", rank=rank)
    assert page.value("ddp_job_info", parallelism="ddp", precision="float32") == 1
