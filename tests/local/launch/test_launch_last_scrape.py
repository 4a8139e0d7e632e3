"""A pod whose run is over is scraped once more where a Prometheus comes regularly."""

from __future__ import annotations

import time

from ddp_trainer.common.constants import Exit, GroupState
from ddp_trainer.common.metric_names import Metric
from tests.support.launch_harness import LOOP, Stage, wait_until
from tests.support.metrics_processes import Scrape, scraped


def test_prometheus_sees_that_the_run_has_succeeded(stage: Stage) -> None:
    script = stage.script(LOOP)
    run = stage.launch("--metrics-port", "0", script, stage.done(), DDP_METRICS_ADDRESS="127.0.0.1")
    address = run.line(r"(http://127\.0\.0\.1:\d+/metrics)")[1]
    run.line("rank=0 .* runs")

    def scrape() -> Scrape:
        return scraped(address, agent="Prometheus/3.5.0")

    scrape()
    time.sleep(1.5)  # the interval is what is learned
    scrape()
    stage.finish()
    run.line("Restarts by cause")
    wait_until(lambda: scrape().value(Metric.GROUP_STATE, state=GroupState.SUCCEEDED) == 1, "a scrape with its success")
    assert run.process.poll() is None
    assert run.code() == Exit.SUCCESS
