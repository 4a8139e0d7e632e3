"""What a launcher learns of one that crashed before it in the same pod, and what it leaves for the next one."""

from __future__ import annotations

from pathlib import Path

from ddp_trainer.common.constants import Env, FailureReason, File, RestartCause
from ddp_trainer.launch.agent.predecessor import Predecessor
from ddp_trainer.launch.host.parent_link import LauncherRecord, LauncherRecordFile
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.process.recorder import AgentRecorder
from tests.support.launch_simulation import SimulatedRun, a_policy


class Journal(AgentRecorder):
    """Recorder that keeps what it is told of crashes."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def failed(self, reason: FailureReason, rank: int, timestamp: float) -> None:
        self.messages.append((reason, rank, timestamp))

    def count_restart(self, cause: RestartCause) -> None:
        self.messages.append(cause)


def of_pod(folder: Path) -> dict[str, str]:
    return {Env.RUN_DIR: str(folder), Env.RUN_ID: "run", Env.NODE_NAME: "node-a"}


def a_place() -> Assignment:
    """Place of a node in a group of its own."""
    (agent,) = SimulatedRun(a_policy(1, 1)).joined(0)
    assert agent.generation is not None
    return agent.generation


def test_a_crash_is_described_by_the_place_that_the_launcher_had_and_reported_once(tmp_path: Path) -> None:
    environ, journal = of_pod(tmp_path), Journal()
    file = LauncherRecordFile(environ)
    file.write(LauncherRecord(run_id="run", has_joined=True, generation=4, first_rank=6, crashes=1))
    assert file.record_crash(139, 50.0)
    later = Predecessor("worker-3", environ, is_recorded=True)
    crash = later.crash
    assert crash is not None
    assert (crash.generation, crash.rank, crash.node, crash.host) == (4, 6, "worker-3", "node-a")
    assert (crash.exit_code, crash.timestamp) == (139, 50.0)
    later.report(journal)
    later.store_reached()
    for _ in range(2):
        later.group_formed(a_place(), journal)
    assert journal.messages == [(FailureReason.LAUNCHER_CRASH, 6, 50.0), RestartCause.FAILURE]
    assert file.read() == LauncherRecord(
        run_id="run", has_joined=True, generation=1, first_rank=0, crashes=2, crashed_at=50.0
    )
    later.launcher_ended()
    assert not (tmp_path / File.LAUNCHER).exists()


def test_a_crash_is_reported_by_a_later_launcher_if_none_has_reached_the_store_before(tmp_path: Path) -> None:
    environ = of_pod(tmp_path)
    file = LauncherRecordFile(environ)
    file.write(LauncherRecord(run_id="run", has_joined=True))
    assert file.record_crash(137, 50.0)
    assert not file.record_crash(139, 60.0)
    crash = Predecessor("worker-0", environ, is_recorded=True).crash
    assert crash is not None
    assert crash.exit_code == 137


def test_a_crash_counts_from_the_first_group_on_and_not_of_a_spare(tmp_path: Path) -> None:
    file = LauncherRecordFile(of_pod(tmp_path))
    launcher = Predecessor("worker-0", of_pod(tmp_path), is_recorded=True)
    launcher.store_reached()
    assert not file.record_crash(137, 50.0)
    launcher.group_formed(a_place(), Journal())
    assert file.record_crash(137, 60.0)
    spare = Predecessor("worker-0", of_pod(tmp_path), is_recorded=True)
    spare.store_reached()
    assert not file.record_crash(137, 70.0)
    assert Predecessor("worker-0", of_pod(tmp_path), is_recorded=True).crash is None


def test_a_launcher_that_nobody_starts_again_leaves_no_record(tmp_path: Path) -> None:
    Predecessor("worker-0", of_pod(tmp_path), is_recorded=False).group_formed(a_place(), Journal())
    assert list(tmp_path.iterdir()) == []
