"""Ranks that are stopped, hold the GIL, or are killed: their last values are still to be had."""

from __future__ import annotations

import signal
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
