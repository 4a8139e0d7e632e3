"""Recorders: each report is stored under its name, and no report raises."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ddp_trainer.common.constants import Env, FailureReason, GroupState, RestartCause
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.parallel_dims import DIMENSION_NAMES, LayoutRange
from ddp_trainer.common.time_classes import IN_POD, JobTime, Phase, StartupPhase, Wait
from ddp_trainer.metrics.record import suppress_errors
from ddp_trainer.metrics.record.agent_recorder import MmapAgentRecorder
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.storage.mmap_directory import rank_metrics_path
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, MetricsFile, read
from ddp_trainer.metrics.storage.process import ProcessId
from ddp_trainer.process.recorder import AgentRecorder, RankRecorder, RendezvousResult
from ddp_trainer.process.startup_times import StartupTimes

seconds = some.floats(0, 1e3)


class Rank:
    """A recorder of a rank, with the values that a reader sees."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "rank-0.board"
        self.file = MetricsFile.open(self.path, RANK)
        self.board_recorder = MmapRankRecorder(self.file, clock=lambda: 1000.5)
        self.recorder: RankRecorder = self.board_recorder

    def __getitem__(self, key: str) -> float:
        return read(self.path, RANK).values[key]


class Agent:
    """A recorder of an agent, with the values that a reader sees."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "agent.board"
        self.recorder: AgentRecorder = MmapAgentRecorder(MetricsFile.open(self.path, AGENT), self.path.parent)

    def __getitem__(self, key: str) -> float:
        return read(self.path, AGENT).values[key]


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


@given(steps=some.lists(some.tuples(some.integers(0, 4096), *[seconds] * len(Phase)), min_size=1, max_size=20))
def test_steps_add_up(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]) -> None:
    rank = Rank(tmp_path_factory.mktemp("boards"))
    for number, (samples, *phases) in enumerate(steps, start=1):
        rank.recorder.step(number, 2, samples, *phases)
    assert rank[Metric.STEPS] == len(steps) == rank[Metric.STEP]
    assert rank[Metric.SAMPLES] == sum(step[0] for step in steps)
    assert rank[Metric.EPOCH] == 2
    assert rank[Metric.LAST_STEP_TIMESTAMP] == 1000.5
    for position, phase in enumerate(Phase, start=1):
        assert rank[cell(Metric.PHASE_SECONDS, phase)] == pytest.approx(sum(step[position] for step in steps))


def test_the_start_ends_with_the_first_step(rank: Rank, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)  # whatever other tests have compiled
    startup = StartupTimes(clock=lambda: 1010.0, started=lambda: 1000.0)
    rank.board_recorder.record_startup(startup)
    startup.end_phase(StartupPhase.RENDEZVOUS, 1004.0)
    assert rank[cell(Metric.STARTUP, StartupPhase.RENDEZVOUS)] == 4.0
    assert cell(Metric.STARTUP, StartupPhase.FIRST_STEP) not in read(rank.path, RANK).values
    rank.recorder.step(1, 0, 16, 1.0, 0, 2.0, 1.0, 0, 0, 0, 0)
    assert rank[cell(Metric.STARTUP, StartupPhase.FIRST_BATCH)] == 3.0
    assert rank[cell(Metric.STARTUP, StartupPhase.FIRST_STEP)] == 3.0
    assert rank[Metric.AGENT_START] == 1000.0
    phases = dict.fromkeys(IN_POD, 0.0) | {"rendezvous": 4.0, "first_batch": 3.0, "first_step": 3.0}
    assert agent.recorder.startup() == {"began": 1000.0, **phases}


def test_a_restarted_worker_leaves_the_start_of_its_pod_alone(rank: Rank) -> None:
    rank.board_recorder.record_startup(StartupTimes(clock=lambda: 1010.0, started=lambda: 1000.0))
    rank.recorder.step(1, 0, 16, *[0.0] * len(Phase))
    later = MmapRankRecorder(rank.file)
    later.record_startup(StartupTimes(clock=lambda: 2010.0, started=lambda: 2000.0))
    later.step(2, 0, 16, *[0.0] * len(Phase))
    assert rank[Metric.AGENT_START] == 1000.0


def test_work_and_what_was_measured_of_it_add_up(rank: Rank) -> None:
    for _ in range(2):
        rank.recorder.work(2048, 1e12)
        rank.recorder.sampled(0.75, 0.25)
    assert (rank[Metric.TOKENS], rank[Metric.MODEL_FLOPS]) == (4096, 2e12)
    assert (rank[Metric.SAMPLED_STEPS], rank[Metric.SAMPLED_BUSY], rank[Metric.SAMPLED_COMM_EXPOSED]) == (2, 1.5, 0.5)


def test_waits_exist_from_when_a_layout_has_them_and_add_up_over_a_restart(rank: Rank) -> None:
    with pytest.raises(KeyError):
        rank[cell(Metric.WAIT_SECONDS, Wait.ALL_GATHER)]
    for _ in "first", "second process":
        rank.recorder.record_wait({Wait.ALL_GATHER: 0.0})
        rank.recorder.record_wait({Wait.ALL_GATHER: 0.25})
    assert rank[cell(Metric.WAIT_SECONDS, Wait.ALL_GATHER)] == 0.5
    with pytest.raises(KeyError):
        rank[cell(Metric.WAIT_SECONDS, Wait.STAGE)]


def test_an_unknown_gradient_norm_or_loss_scale_is_not_recorded(rank: Rank) -> None:
    rank.recorder.gradients(2.5, None)
    assert rank[Metric.GRADIENT_NORM] == 2.5
    with pytest.raises(KeyError):
        rank[Metric.LOSS_SCALE]
    rank.recorder.gradients(None, 1024.0)
    assert (rank[Metric.GRADIENT_NORM], rank[Metric.LOSS_SCALE]) == (2.5, 1024.0)


def test_counters_of_the_allocator_continue_over_a_restart(rank: Rank) -> None:
    peak = "ddp_gpu_memory_peak_allocated_bytes"
    before = {peak: 3.0, "ddp_gpu_alloc_retries_total": 5.0, "ddp_gpu_oom_total": 1.0}
    for _ in "first", "second process":
        rank.board_recorder.gpu_memory(before, {})
        rank.board_recorder.gpu_memory(before | {peak: 9.0, "ddp_gpu_alloc_retries_total": 7.0}, before)
    assert (rank["ddp_gpu_alloc_retries_total"], rank["ddp_gpu_oom_total"]) == (14, 2)
    assert rank[peak] == 9.0


def test_checkpoints_are_recorded(rank: Rank) -> None:
    rank.recorder.checkpoint_saved(40, 2.0, 0.5, 1 << 20)
    rank.recorder.checkpoint_saved(80, 4.0, 0.5, 1 << 21)
    rank.recorder.add(cell(Metric.CHECKPOINT_SAVES, "failure"))
    rank.recorder.add(cell(Metric.CHECKPOINT_SAVES, "skipped"), 3.0)
    rank.recorder.add(Metric.CHECKPOINT_LOAD_SECONDS, 3.0)
    rank.recorder.put(Metric.CHECKPOINT_INTERVAL, 30.0)
    counters = "saves_total{success}", "saves_total{failure}", "saves_total{skipped}"
    assert [rank[f"ddp_checkpoint_{name}"] for name in counters] == [2, 1, 3]
    totals = "save_seconds_total", "blocking_seconds_total", "load_seconds_total"
    assert [rank[f"ddp_checkpoint_{name}"] for name in totals] == [6.0, 1.0, 3.0]
    gauges = "last_step", "size_bytes", "last_success_timestamp_seconds", "interval_seconds"
    assert [rank[f"ddp_checkpoint_{name}"] for name in gauges] == [80, 1 << 21, 1000.5, 30.0]


def test_an_account_of_the_job_replaces_the_one_before(rank: Rank) -> None:
    rank.recorder.account(JobAccount(1000.0, [9.0] * len(JobTime), 9, 9.0))
    rank.recorder.account(JobAccount(1000.0, [float(number) for number in range(len(JobTime))], 7, 1.5))
    rank.recorder.add(Metric.SKIPPED_STEPS)
    assert [rank[cell(Metric.JOB_TIME, state)] for state in JobTime] == list(range(len(JobTime)))
    assert rank[Metric.JOB_START] == 1000.0
    assert (rank[Metric.LOST_STEPS], rank[Metric.LOST_PROGRESS], rank["ddp_skipped_steps_total"]) == (7, 1.5, 1)


def test_an_identity_keeps_the_values_of_the_environment(rank: Rank) -> None:
    rank.file.describe({"node_rank": 3, "rank": 0})
    rank.recorder.identity(rank=6, local_rank=0, world_size=8, backend="nccl", device="x" * 500)
    reported = {"rank": 6, "local_rank": 0, "world_size": 8, "backend": "nccl", "device": "x" * 128}
    unknown = dict.fromkeys(("device_name", "gpu_uuid", *DIMENSION_NAMES), "")
    assert rank.file.identity == {"node_rank": 3, **reported, **unknown}


def test_the_place_of_a_rank_is_that_in_the_layout_of_its_group(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    def place_at(number: int, world_size: int, parallel: LayoutRange | None = None) -> str:
        who = {"local_rank": 0, "backend": "gloo", "device": "cpu", "parallel": parallel}
        rank.recorder.identity(rank=number, world_size=world_size, **who)
        identity = rank.file.identity
        return " ".join(f"{label}={identity[label]}" for label in DIMENSION_NAMES if identity[label])

    assert place_at(3, 4) == ""
    monkeypatch.setenv(Env.PARALLEL, "replicate=1:2,shard=2")
    assert place_at(3, 4) == "replicate=1 shard=1"
    assert place_at(1, 2) == "shard=1", "its place in a larger group is forgotten"
    assert place_at(3, 4, LayoutRange.parse("pp=2,tp=2")) == "pp=1 tp=1", "the program's layout precedes the job's"
    assert place_at(0, 1) == "", "the job has no layout of this size"


def test_exactly_one_state_is_on(agent: Agent) -> None:
    for state in GroupState:
        agent.recorder.state(state)
        assert [group_state for group_state in GroupState if agent[cell(Metric.GROUP_STATE, group_state)]] == [state]


def test_restarts_and_failures_are_counted_by_cause(agent: Agent) -> None:
    agent.recorder.count_restart(RestartCause.RESIZE)
    agent.recorder.failed(FailureReason.SIGKILL, 3, 1700000000.25)
    agent.recorder.failed(FailureReason.SIGKILL, 2, 1700000001.5)
    assert [agent[cell(Metric.RESTARTS, cause)] for cause in RestartCause] == [0, 1, 0, 0, 0]
    assert agent[cell(Metric.FAILURES, "sigkill")] == 2
    assert (agent[Metric.LAST_FAILED_RANK], agent[Metric.LAST_FAILURE]) == (2, 1700000001.5)


def test_a_collective_that_failed_is_counted_on_the_board_of_its_rank(rank: Rank, agent: Agent, tmp_path: Path) -> None:
    rank.file.claim(ProcessId.current())
    revision = rank.file.revision[0]
    for reason in FailureReason:
        agent.recorder.collective_failed(0, reason)
    agent.recorder.collective_failed(0, FailureReason.COLLECTIVE_TIMEOUT)
    agent.recorder.collective_failed(1, FailureReason.COLLECTIVE_TIMEOUT)
    assert (rank["ddp_collective_timeouts_total"], rank["ddp_collective_errors_total"]) == (2, 1)
    assert rank.file.owner == ProcessId.current()
    assert rank.file.revision[0] == revision, "the rank may be in a step"
    assert not rank_metrics_path(tmp_path, 1).exists(), "a rank that has none gets none"


def test_a_rendezvous_is_summed_and_the_last_is_kept(agent: Agent) -> None:
    restarts = {RestartCause.FAILURE: 2, RestartCause.RESIZE: 1}
    first = RendezvousResult(2.0, 1, size=6, nodes=3, nodes_desired=3, first_rank=4, restarts_left=3, restarts={})
    later = RendezvousResult(0.5, 2, size=4, nodes=2, nodes_desired=3, first_rank=2, restarts_left=1, restarts=restarts)
    for formed in (first, later):
        agent.recorder.rendezvous_completed(formed)
        agent.recorder.rendezvous_failed()
    agent.recorder.rejected_connections(7)
    durations = "duration_seconds_sum", "duration_seconds_count", "last_duration_seconds"
    assert [agent[f"ddp_rendezvous_{name}"] for name in durations] == [2.5, 2, 0.5]
    assert agent[Metric.RENDEZVOUS_ROUND] == 2
    assert (agent[Metric.WORLD_SIZE], agent[Metric.NODES], agent["ddp_nodes_desired"]) == (4, 2, 3)
    assert (agent[Metric.FIRST_RANK], agent["ddp_restarts_remaining"]) == (2, 1)
    assert [agent[cell(Metric.RESTARTS, cause)] for cause in (RestartCause.FAILURE, RestartCause.RESIZE)] == [2, 1]
    failures = "failures_total", "refused_connections_total"
    assert [agent[f"ddp_rendezvous_{name}"] for name in failures] == [2, 7]


REPORTS: list[tuple[str, tuple[Any, ...]]] = [
    ("step", (None,) * 11),
    ("put", (Metric.STEPS_PLANNED, object())),
    ("add", ("ddp_unknown_total",)),
    ("checkpoint_saved", (None, None, None, None)),
    ("account", (JobAccount(1.0, [1.0], 0, 0.0),)),
]


@pytest.mark.parametrize(("method", "nonsense"), REPORTS)
def test_nonsense_is_a_warning_once_and_never_an_error(
    rank: Rank, caplog: pytest.LogCaptureFixture, method: str, nonsense: tuple[Any, ...]
) -> None:
    suppress_errors._warned.clear()
    getattr(rank.recorder, method)(*nonsense)
    getattr(rank.recorder, method)(*nonsense)
    (record,) = caplog.records
    assert record.getMessage().startswith(f"metrics: {method} is not recorded (")
    assert record.getMessage().endswith("; training continues")


def test_a_step_after_nonsense_is_recorded(rank: Rank) -> None:
    rank.recorder.step(1, 0, None, *[0.0] * len(Phase))  # type: ignore[arg-type]
    rank.recorder.step(2, 0, 8, *[0.0] * len(Phase))
    assert rank[Metric.STEP] == 2
    assert rank.file.revision[0] % 2 == 0


def test_a_closed_board_is_no_reason_to_stop_training(rank: Rank) -> None:
    del rank.recorder
    rank.file.close()
    closed = MetricsFile.open(rank.path, RANK)
    recorder = MmapRankRecorder(closed)
    closed.close()
    recorder.step(1, 0, 1, *[0.0] * len(Phase))
    recorder.identity(rank=0, local_rank=0, world_size=1, backend="gloo", device="cpu")
