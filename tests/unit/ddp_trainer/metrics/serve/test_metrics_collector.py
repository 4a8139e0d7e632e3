"""Series of a scrape, from the boards of a pod."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ddp_trainer.common.constants import Env, FailureReason, GroupState
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime, Phase, Wait
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.collect.collectives import Collectives
from ddp_trainer.metrics.families.family import Kind, Scope, Source
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.serve import collector
from ddp_trainer.metrics.serve.collector import Exposition
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.flight_recorder import recorder_socket_path
from ddp_trainer.process.recorder import RankRecorder, RendezvousResult
from tests.support.metrics_processes import rank_variables
from tests.support.recorder_server import entry, record, recorder_at

GPU_MEMORY = ("allocated", "reserved", "peak_allocated", "limit")
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def rank(directory: Path, number: int, *, local: int, of: int = 2) -> RankRecorder:
    recorder = attach.rank_recorder(rank_variables(directory, number, local=local, of=of))
    recorder.identity(rank=number, local_rank=local, world_size=8, backend="gloo", device="cpu")
    return recorder


def pod(directory: Path, *ranks: int) -> None:
    """Write the boards of a pod in which everything has been reported once."""
    agent = attach.agent_recorder(directory, {})
    agent.state(GroupState.RUNNING)
    agent.rendezvous_completed(RendezvousResult(1.5, 1, size=8, nodes=4, nodes_desired=4, restarts_left=3))
    agent.failed(FailureReason.SIGKILL, 3, 1.5)
    agent.stalled(31.5, 2)
    for local, number in enumerate(ranks):
        recorder = rank(directory, number, local=local, of=len(ranks))
        recorder.put(Metric.STEPS_PLANNED, 100)
        recorder.step(1, 0, 16, *[0.25] * len(Phase))
        recorder.progress(math.nan, 0.1)
        recorder.gradients(1.5, 65536.0)
        recorder.job(precision="bf16", parallelism="shard=2,pp=4")
        recorder.put(Metric.RECOMPUTED, 0.25)
        recorder.record_wait(dict.fromkeys(Wait, 0.5))
        recorder.gpu_memory({f"ddp_gpu_memory_{name}_bytes": 1.0 for name in GPU_MEMORY}, {})
        recorder._file.put({Metric.PEAK_FLOPS: 1e15})
        recorder.record_evaluation(0.5, 0.9)
        recorder.checkpoint_saved(1, 1.0, 0.1, 1000)
        recorder.put(Metric.CHECKPOINT_INTERVAL, 30.0)
        recorder.put(Metric.CHECKPOINT_FAILURES, 0)
        recorder.account(JobAccount(1000.0, [1.0] * len(JobTime), 0, 0.0))
        in_group(directory, local)


def in_group(directory: Path, local: int) -> None:
    """Write the heartbeat page of a rank that has begun seven collectives."""
    path = str(directory / f"rank-{local}.page")
    heartbeat_page.create(path)
    cells = heartbeat_page.open_page(path)
    cells[heartbeat_page.HAS_GROUP], cells[heartbeat_page.SEQUENCE] = 1.0, 7.0
    cells[heartbeat_page.BEAT] = time.monotonic()


def collectives(directory: Path) -> Collectives:
    """Collect from all heartbeat pages of a directory, and from a flight recorder for each."""
    gathered = Collectives(directory)
    answers = {"fr_trace_json": record({0: (7, 6)}, entry(7))}
    with contextlib.ExitStack() as stack:
        for path in directory.glob("*.page"):
            stack.enter_context(recorder_at(recorder_socket_path(path), answers))
        gathered.query_due_ranks()
    for path in directory.glob("*.sock"):
        path.unlink()
    return gathered


def samples(directory: Path, job: str = "digits") -> Series:
    (directory / "memory.max").write_text("1073741824\n")
    text = generate_latest(Exposition(directory, job, directory, collectives(directory))).decode()
    found = [sample for family in parse_text(text) for sample in family.samples]
    series = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in found}
    assert len(series) == len(found), "a duplicate series"
    return series


def labels_of(series: Series, name: str) -> list[dict[str, str]]:
    return [dict(labels) for sample_name, labels in series if sample_name == name]


def sample_names(scope: Scope) -> set[str]:
    """Return the names of all samples but those of NVML (``test_metrics_gpu_readings.py``)."""
    families = [family for family in FAMILIES if family.scope is scope and family.source is not Source.NVML]
    return {series.sample for family in families for series in family.series()} | {
        family.name for family in families if family.kind is Kind.INFO
    }


def test_a_scrape_has_the_catalogue_and_nothing_else(tmp_path: Path) -> None:
    pod(tmp_path, 0, 1)
    names = {name for name, _ in samples(tmp_path)}
    assert names == sample_names(Scope.RANK) | sample_names(Scope.POD) | sample_names(Scope.JOB)


def test_every_family_of_a_rank_carries_the_job_and_the_rank(tmp_path: Path) -> None:
    pod(tmp_path, 4, 5)
    series = samples(tmp_path)
    for name in sample_names(Scope.RANK) & {name for name, _ in series}:
        assert {labels["rank"] for labels in labels_of(series, name)} == {"4", "5"}, name
    assert {dict(labels)["ddp_job"] for _, labels in series} == {"digits"}


def test_only_rank_0_reports_the_job(tmp_path: Path) -> None:
    pod(tmp_path / "first", 0, 1)
    pod(tmp_path / "second", 2, 3)
    first, second = samples(tmp_path / "first"), samples(tmp_path / "second")
    for name in sample_names(Scope.JOB):
        assert {labels["ddp_job"] for labels in labels_of(first, name)} == {"digits"}, name
        assert all("rank" not in labels for labels in labels_of(first, name)), name
        assert labels_of(second, name) == [], name


def test_a_series_follows_the_rank_that_has_the_slot_now(tmp_path: Path) -> None:
    pod(tmp_path, 4, 5)
    rank(tmp_path, 0, local=0).step(2, 0, 16, *[0.0] * len(Phase))
    rank(tmp_path, 1, local=1)
    series = samples(tmp_path)
    assert {labels["rank"] for labels in labels_of(series, Metric.STEPS)} == {"0", "1"}
    assert series[Metric.STEPS, frozenset({("ddp_job", "digits"), ("rank", "0")})] == 2, "counters go on"


def test_a_rank_has_no_info_before_it_has_reported_its_device(tmp_path: Path) -> None:
    attach.rank_recorder({Env.METRICS_DIR: str(tmp_path)})
    series = samples(tmp_path)
    assert labels_of(series, Metric.RANK_UP)
    assert not labels_of(series, Metric.RANK_INFO)


def test_the_exporter_has_metrics_of_its_own_even_without_boards(tmp_path: Path) -> None:
    (tmp_path / "rank-0.board").write_bytes(b"damaged")
    exposition = Exposition(tmp_path, "digits")
    generate_latest(exposition)
    values = {sample.name: sample.value for family in exposition.collect() for sample in family.samples}
    assert (values["ddp_exporter_stale_boards"], values["ddp_exporter_scrapes_total"]) == (1, 1)
    assert values["ddp_exporter_scrape_seconds_total"] > 0
    assert values["ddp_build_info"] == 1


def test_a_scrape_sees_every_series_before_anything_happened(tmp_path: Path) -> None:
    """Prometheus' increase() does not see the first sample of a series."""
    attach.agent_recorder(tmp_path, {})
    rank(tmp_path, 0, local=0)
    series = samples(tmp_path)
    for family in FAMILIES:
        if family.kind is Kind.COUNTER and not family.is_absent_at_first:
            assert len(labels_of(series, family.name)) == len(family.series()), family.name


def test_a_bucket_counts_what_is_in_those_below_it(tmp_path: Path) -> None:
    recorder = rank(tmp_path, 0, local=0)
    for seconds in (0.01, 0.011, 0.3, 1e6):
        recorder.step(1, 0, 16, seconds, *[0.0] * (len(Phase) - 1))
    series = samples(tmp_path)
    buckets = {dict(labels)["le"]: count for (name, labels), count in series.items() if name.endswith("_bucket")}
    assert [buckets[bound] for bound in ("0.01", "0.016", "0.25", "0.4", "63.0", "+Inf")] == [1, 2, 2, 3, 3, 4]
    assert series["ddp_step_duration_seconds_count", frozenset({("ddp_job", "digits")})] == 4
    assert series["ddp_step_duration_seconds_sum", frozenset({("ddp_job", "digits")})] == pytest.approx(1e6 + 0.321)


def test_a_job_has_no_info_before_it_has_reported_its_precision(tmp_path: Path) -> None:
    recorder = rank(tmp_path, 0, local=0)
    assert not labels_of(samples(tmp_path), Metric.JOB_INFO)
    recorder.job(precision="bf16", parallelism="ddp")
    (labels,) = labels_of(samples(tmp_path), Metric.JOB_INFO)
    assert (labels["precision"], labels["parallelism"]) == ("bf16", "ddp")


def test_the_account_of_the_job_is_absent_until_it_is_reported(tmp_path: Path) -> None:
    """A jump from 0 to the hours of the pods before would read as an increase."""
    recorder = rank(tmp_path, 0, local=0)
    assert not labels_of(samples(tmp_path), Metric.JOB_TIME)
    recorder.account(JobAccount(1000.0, [3600.0] * len(JobTime), 2, 1.0))
    assert len(labels_of(samples(tmp_path), Metric.JOB_TIME)) == len(JobTime)


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "536870912\n"}, 536870912.0),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "268435456\n"}, 268435456.0),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({}, None),
    ],
    ids=["v2", "v2-unlimited", "v1", "v1-unlimited", "unknown"],
)
def test_the_memory_limit_is_read_from_both_cgroups(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert collector.memory_limit(tmp_path) == limit


def test_shared_memory_is_measured_where_it_is_mounted(tmp_path: Path) -> None:
    values = collector.limits(cgroup=tmp_path)
    assert 0 <= values["ddp_shm_used_bytes"] <= values["ddp_shm_size_bytes"]
    assert collector.limits(tmp_path / "nowhere", tmp_path) == {}


@pytest.mark.parametrize(
    ("write", "parse"), [(generate_latest, parse_text), (generate_openmetrics, parse_openmetrics)], ids=["text", "om"]
)
def test_both_formats_can_be_parsed_and_agree_on_types(
    tmp_path: Path, write: Callable[[Exposition], bytes], parse: Callable[[str], object]
) -> None:
    pod(tmp_path, 0, 1)
    families = list(parse(write(Exposition(tmp_path, 'a "job"\nof \\mine')).decode()))  # type: ignore[call-overload]
    types = {family.name: family.type for family in families}
    assert (types["ddp_steps"], types["ddp_rendezvous_duration_seconds"]) == ("counter", "summary")
    assert {sample.labels["ddp_job"] for family in families for sample in family.samples} == {'a "job"\nof \\mine'}
