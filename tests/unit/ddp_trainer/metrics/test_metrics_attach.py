"""Attachment of recorders: by the environment, and without harm to the training."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env, GroupState, OutsideReason
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.storage.mmap_directory import agent_metrics_path, rank_metrics_path, read_pod_snapshot
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, read
from ddp_trainer.metrics.storage.process import ProcessId
from ddp_trainer.process.recorder import NoopAgentRecorder, NoopRankRecorder, RendezvousResult
from tests.support.metrics_processes import rank_variables
from tests.support.programs import captured

ONE_STEP = (1, 0, 16, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def environment(directory: Path, **more: str) -> Mapping[str, str]:
    return rank_variables(directory, 5, local=1, of=4) | more


def test_without_a_directory_nothing_is_recorded() -> None:
    assert isinstance(attach.rank_recorder({}), NoopRankRecorder)
    assert isinstance(attach.rank_recorder({Env.METRICS_DIR: ""}), NoopRankRecorder)
    assert isinstance(attach.agent_recorder(None, {}), NoopAgentRecorder)


def test_a_rank_is_known_from_the_first_moment(tmp_path: Path) -> None:
    attach.rank_recorder(environment(tmp_path, GROUP_RANK="1"))
    metrics_file = read(rank_metrics_path(tmp_path, 1), RANK)
    assert metrics_file.owner == ProcessId.current()
    assert metrics_file.identity == {"rank": 5, "local_rank": 1, "node_rank": 1, "run_id": "", "local_world_size": 4}


def test_a_rank_started_by_hand_is_rank_0_of_one(tmp_path: Path) -> None:
    attach.rank_recorder({Env.METRICS_DIR: str(tmp_path)})
    identity = read(rank_metrics_path(tmp_path, 0), RANK).identity
    assert identity == {"rank": 0, "local_rank": 0, "node_rank": 0, "run_id": "", "local_world_size": 1}


def test_a_restarted_rank_continues_and_keeps_its_device(tmp_path: Path) -> None:
    first = attach.rank_recorder(environment(tmp_path))
    first.identity(rank=5, local_rank=1, world_size=8, backend="nccl", device="H100")
    first.step(*ONE_STEP)
    second = attach.rank_recorder(environment(tmp_path, RANK="3"))
    second.step(*ONE_STEP)
    metrics_file = read(rank_metrics_path(tmp_path, 1), RANK)
    assert metrics_file.values[Metric.STEPS] == 2
    assert (metrics_file.identity["rank"], metrics_file.identity["device"]) == (3, "H100")


def test_a_worker_that_has_no_place_yet_is_no_rank_or_the_one_before_it(tmp_path: Path) -> None:
    waiting = {name: value for name, value in environment(tmp_path).items() if name != "RANK"}
    first = attach.rank_recorder(waiting)
    assert read_pod_snapshot(tmp_path).ranks == ()
    assert read_pod_snapshot(tmp_path).stale == ()
    first.identity(rank=5, local_rank=1, world_size=8, backend="gloo", device="cpu")
    attach.rank_recorder(waiting)
    assert [slot.rank for slot in read_pod_snapshot(tmp_path).ranks] == [5]


def test_the_launcher_makes_the_directory_and_is_pending(tmp_path: Path) -> None:
    directory = tmp_path / "run" / "metrics"
    attach.agent_recorder(directory, {}).rendezvous_completed(
        RendezvousResult(2.0, 1, size=4, nodes=2, nodes_desired=2)
    )
    values = read(agent_metrics_path(directory), AGENT).values
    assert values[cell(Metric.GROUP_STATE, GroupState.PENDING)] == 1
    assert values[Metric.WORLD_SIZE] == 4
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_restarted_launcher_continues_to_count(tmp_path: Path) -> None:
    group = RendezvousResult(2.0, 1, size=4, nodes=2, nodes_desired=2)
    attach.agent_recorder(tmp_path, {}).rendezvous_completed(group)
    attach.agent_recorder(tmp_path, {}).rendezvous_completed(group._replace(seconds=3.0, generation=2))
    assert read(agent_metrics_path(tmp_path), AGENT).values["ddp_rendezvous_duration_seconds_sum"] == 5.0


def test_a_pod_outside_of_the_group_has_one_reason_and_its_time_and_a_member_none(tmp_path: Path) -> None:
    recorder = attach.agent_recorder(tmp_path, {})

    def shown() -> dict[str, float]:
        values = read(agent_metrics_path(tmp_path), AGENT).values
        return {key: value for key, value in values.items() if key.startswith(Metric.OUTSIDE_SINCE) and value}

    recorder.outside_group(OutsideReason.NAME_RESOLUTION, 90.0)
    recorder.outside_group(OutsideReason.CONNECTION, 90.0)
    assert shown() == {cell(Metric.OUTSIDE_SINCE, "connection"): 90.0}
    recorder.outside_group(None, 90.0)
    assert shown() == {}


@pytest.mark.parametrize(
    ("folder", "variables"), [("missing", {}), ("file", {}), ("/proc/self", {}), ("", {"LOCAL_RANK": "first"})]
)
def test_trouble_is_one_line_of_warning_and_a_silent_recorder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str, variables: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    broken = environment(tmp_path / folder, **variables)
    attach.rank_recorder(broken).step(*ONE_STEP)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        f"metrics are off for this rank: no metrics file in {broken[Env.METRICS_DIR]} ("
    )
    assert "\n" not in record.getMessage()


def run(code: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command, environ = [sys.executable, "-c", code], os.environ | environment
    return captured(command, env=environ, timeout=60)


def test_a_child_of_a_rank_does_not_take_its_metrics_file(tmp_path: Path) -> None:
    """A worker of a data loader that imports the training script must not become the rank."""
    environ = environment(tmp_path)
    attach.rank_recorder(environ)
    done = run("from ddp_trainer.metrics import attach; print(type(attach.rank_recorder()).__name__)", environ)
    assert (done.stdout, done.stderr) == ("NoopRankRecorder\n", "")
    assert read(rank_metrics_path(tmp_path, 1), RANK).owner == ProcessId.current()


def test_no_space_for_a_board_is_a_warning_and_not_a_bus_error(tmp_path: Path) -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
        "from ddp_trainer.metrics import attach\n"
        f"attach.rank_recorder().step(*{ONE_STEP}); print('trained')"
    )
    done = run(code, environment(tmp_path))
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr.startswith("metrics are off for this rank: no metrics file in ")
    assert (done.stderr.count("\n"), list(tmp_path.iterdir())) == (1, [])


def test_attaching_imports_neither_torch_nor_prometheus_client() -> None:
    done = run("import sys, ddp_trainer.metrics.attach; print({'torch', 'prometheus_client'} & set(sys.modules))", {})
    assert done.stdout == "set()\n"


def test_a_meter_counts_on_from_the_steps_of_an_earlier_process(tmp_path: Path) -> None:
    attach.meter(environment(tmp_path)).step(samples=16)
    meter = attach.meter(environment(tmp_path))
    meter.step(samples=16)
    assert isinstance(meter.recorder, MmapRankRecorder)
    assert meter.recorder.steps == 2
    values = read(rank_metrics_path(tmp_path, 1), RANK).values
    assert (values[Metric.STEP], values[Metric.STEPS]) == (2.0, 2.0)
