"""Ranks that are stopped, hold the GIL, or are killed: their last values are still to be had."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import Phase
from tests.support.metrics_processes import Aggregator, Rank, aggregator


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Aggregator]:
    with aggregator(tmp_path) as running:
        yield running


def test_a_stopped_rank_shows_its_last_values_and_that_it_is_stopped(pod: Aggregator, tmp_path: Path) -> None:
    with Rank(tmp_path, 0) as rank:
        rank.tell("step 7")
        rank.tell("loss 0.5")
        rank.kill(signal.SIGSTOP)
        seen = pod.scrape_until(lambda scrape: scrape.value("ddp_rank_stopped", rank="0") == 1)
        assert seen.value(Metric.RANK_UP, rank="0") == 1
        assert seen.value(Metric.STEPS, rank="0") == 7
        assert seen.value(Metric.LOSS) == 0.5
        rank.kill(signal.SIGCONT)
        pod.scrape_until(lambda scrape: scrape.value("ddp_rank_stopped", rank="0") == 0)


def test_a_rank_that_holds_the_gil_shows_its_last_values(pod: Aggregator, tmp_path: Path) -> None:
    with Rank(tmp_path, 1) as rank:
        rank.tell("step 3")
        rank.order("hold-gil")
        rank.wait_until_python_stands_still()
        seen = pod.scrape()
        assert seen.value(Metric.STEP, rank="1") == 3
        assert seen.value(Metric.RANK_UP, rank="1") == 1
        assert seen.value("ddp_rank_stopped", rank="1") == 0
        assert seen.value("ddp_rank_cpu_seconds_total", rank="1") is not None


def test_a_killed_rank_shows_its_last_values_and_that_it_is_down(pod: Aggregator, tmp_path: Path) -> None:
    with Rank(tmp_path, 2) as rank:
        rank.tell("step 5")
        rank.tell("loss nan")
        started = pod.scrape().value("ddp_rank_start_time_seconds", rank="2")
        rank.kill(signal.SIGKILL)
        # Not reaped: until its parent has waited for it, the process is a zombie, and that is down too.
        seen = pod.scrape_until(lambda scrape: scrape.value(Metric.RANK_UP, rank="2") == 0)
        assert seen.value(Metric.STEPS, rank="2") == 5
        assert seen.value(Metric.LAST_STEP_TIMESTAMP, rank="2") is not None
        assert seen.value("ddp_rank_start_time_seconds", rank="2") == started
        assert seen.value("ddp_rank_resident_memory_bytes", rank="2") is None
        assert seen.value("ddp_exporter_stale_boards") == 0


def test_the_loss_of_a_dead_rank_0_is_still_told(pod: Aggregator, tmp_path: Path) -> None:
    with Rank(tmp_path, 0) as rank:
        rank.tell("loss nan")
    loss = pod.scrape().value(Metric.LOSS)
    assert loss is not None
    assert math.isnan(loss)


def test_a_rank_that_is_started_again_goes_on_in_the_same_series(pod: Aggregator, tmp_path: Path) -> None:
    with Rank(tmp_path, 0) as first:
        first.tell("step 4")
        first.tell("loss 1.5")
        before = pod.scrape()
        first.kill(signal.SIGKILL)
    with Rank(tmp_path, 0) as second:
        second.tell("step 6")
        after = pod.scrape_until(lambda scrape: scrape.value(Metric.STEPS, rank="0") == 10)
    assert after.series() == before.series()
    assert after.value(Metric.SAMPLES, rank="0") == 160
    assert after.value(Metric.PHASE_SECONDS, rank="0", phase=Phase.FORWARD) == 1.25
    assert after.value(Metric.RANK_UP, rank="0") == 1
    started = [scrape.value("ddp_rank_start_time_seconds", rank="0") or 0.0 for scrape in (before, after)]
    assert started[1] > started[0]


def test_ranks_of_a_larger_pod_before_are_not_told_as_up_or_at_all(pod: Aggregator, tmp_path: Path) -> None:
    for number in range(3):
        with Rank(tmp_path, number, local_world_size=3) as rank:
            rank.tell("step 1")
    with Rank(tmp_path, 0, local_world_size=1) as rank:
        rank.tell("step 1")
        seen = pod.scrape_until(lambda scrape: scrape.value(Metric.STEPS, rank="0") == 2)
    assert [sample.labels["rank"] for sample in seen.samples if sample.name == Metric.RANK_UP] == ["0"]


def test_a_full_memory_volume_costs_the_metrics_and_not_the_training(tmp_path: Path) -> None:
    """A real full file system: a store into a mapped page without a block would be answered by SIGBUS."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed, so no small file system can be mounted.")
    program = "from ddp_trainer.metrics.attach import *; rank_recorder().step(1, 0, 16, *[0.0] * 8); print('trained')"
    fill = f"mount -t tmpfs -o size=8k none {tmp_path} && head -c 8k /dev/zero > {tmp_path}/full"
    script = f'{fill}; {sys.executable} -c "$1"'
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh", program],
        env={"DDP_METRICS_DIR": str(tmp_path), "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"},
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"No small file system can be mounted here: {done.stderr.strip()}")
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1
