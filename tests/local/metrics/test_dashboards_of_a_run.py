"""The dashboards over a running job: its pods export the metrics that the panels query."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from pathlib import Path

from ddp_trainer.common.constants import Port
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status import termination_message
from tests.support.dashboards import Question, filled, questions
from tests.support.local_place import Place, Typed
from tests.support.metrics_processes import DEADLINE_SECONDS
from tests.support.prometheus_history import Prometheus
from tests.support.prometheus_server import prometheus
from tests.support.rule_files import exported, records, written

TRAIN = ["--", "train", "--task", "digits", "--epochs", "100000", "--checkpoint-seconds", "1"]
CHOSEN = {"namespace": "training", "namespaces": "training", "ddp_job": "digits", "rank": ".*"}
DID_NOT_HAPPEN = {
    *("ddp_worker_restarts_total", "ddp_worker_failures_total", "ddp_rendezvous_round", "ALERTS"),
    *("ddp_rendezvous_duration_seconds_sum", "ddp_lost_progress_seconds_total", "ddp_skipped_steps_total"),
    *("ddp_collective_timeouts_total", "ddp_collective_errors_total", "ddp_rendezvous_failures_total"),
}
IS_NOT_HERE = {"ddp_peak_flops_per_second", "ddp_container_memory_limit_bytes", "ddp_step_wait_seconds_total"}
IS_NOT_COMPUTED = {"ddp_gradient_norm", "ddp_loss_scale"}
OF_GPUS = ("DCGM_", "ddp_gpu_")
RECORDS = records()


def silent(server: Prometheus, candidates: Iterable[Question]) -> list[Question]:
    """The questions that nothing answers now."""
    return [question for question in candidates if not server.now(filled(question.expr, CHOSEN))]


def is_excused(question: Question) -> bool:
    """Return whether a short run without a fault or a GPU has no series for a query."""
    read = exported(question.expr, RECORDS)
    return bool(read & (DID_NOT_HAPPEN | IS_NOT_HERE | IS_NOT_COMPUTED)) or any(map(_is_of_gpus, read))


def _is_of_gpus(metric: str) -> bool:
    return metric.startswith(OF_GPUS)


def test_a_job_that_runs_answers_what_the_dashboards_ask(place: Place, typed: Typed, tmp_path: Path) -> None:
    shape = ["--name", "digits", "--nnodes", "2", "--nproc", "2", "--module", "ddp_trainer"]
    assert typed("submit", "--local", *shape, *TRAIN).returncode == 0
    wait_for(place, "digits", parse_wait_condition("step=1"), timeout=120)
    targets = {
        f"{pod['status']['podIP']}:{Port.METRICS.value}": {"namespace": "training", "pod": pod["metadata"]["name"]}
        for pod in termination_message.workers(place.job("digits").pods)
    }
    rules = [{"record": name, "expr": expression} for name, expression in RECORDS.items()]
    file = written(tmp_path, "records.json", {"groups": [{"name": "records", "rules": rules}]})
    with prometheus(
        tmp_path, {address: report | {"node": "here"} for address, report in targets.items()}, file
    ) as running:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not running.query("ddp_job:ddp_goodput:ratio1h"):
            assert time.monotonic() < deadline, "no record of a goodput"
            time.sleep(0.1)
        unanswered_questions, deadline = list(questions()), time.monotonic() + DEADLINE_SECONDS
        while unanswered := [item for item in unanswered_questions if not is_excused(item)]:
            assert time.monotonic() < deadline, [str(item) for item in unanswered]
            time.sleep(0.2)
            unanswered_questions = silent(Prometheus(running.address, time.time()), unanswered_questions)
        page, url = tmp_path / "asked.html", running.url.partition("/api")[0]
        reported = typed("report", "digits", "-o", str(page), "--from", "prometheus", url)
    assert reported.returncode == 0, reported.stderr
    assert {"Throughput", "Training loss", "World size"} <= set(re.findall(r"<h3[^>]*>([^<]+)</h3>", page.read_text()))
