"""The agent of a pod: its own errors, and crash records of earlier launchers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ddp_trainer.common.constants import Env, FailureReason, File, RestartCause
from ddp_trainer.launch.agent.previous_launcher import PreviousLauncher
from ddp_trainer.launch.host.parent_link import LauncherRecord, LauncherRecordFile
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.process.recorder import AgentRecorder
from tests.support.launch_simulation import SimulatedRun, a_policy
from tests.support.programs import captured

LAUNCH = """
import errno, sys
from ddp_trainer.launch import cli
from ddp_trainer.launch.agent import agent

def fail(*_):
    raise OSError(errno.EMFILE, "Too many open files")

{body}
sys.exit(cli.main(["--standalone", "--max-restarts=3", "--no-python", *sys.argv[1:]]))
"""


FAIL_AT_RESTART = """
reserve = agent.reserve_port
def reserve_once(_port):
    agent.reserve_port = fail
    return reserve()
agent.reserve_port = reserve_once
"""
FAIL_AFTER_THE_END = """
report = agent.Agent._report_outcome
def report_and_fail(self, finish):
    self._loop.call_soon(fail)
    report(self, finish)
agent.Agent._report_outcome = report_and_fail
"""


def launch(body: str, program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LAUNCH.replace("{body}", body.strip()), program]
    return captured(command, env=os.environ, timeout=60)


def test_an_error_while_a_worker_is_reaped_ends_the_launcher() -> None:
    done = launch(FAIL_AT_RESTART, "false")
    assert (done.returncode, "in reap" in done.stderr) == (1, True)
    assert done.stderr.endswith("OSError: [Errno 24] Too many open files\n")


def test_an_error_after_the_end_is_only_printed() -> None:
    done = launch(FAIL_AFTER_THE_END, "true")
    assert done.returncode == 0
    assert "OSError: [Errno 24] Too many open files" in done.stderr


class Journal(AgentRecorder):
    """Recorder that keeps the reported failures and restarts."""

    def __init__(self) -> None:
        self.messages: list[object] = []

    def failed(self, reason: FailureReason, rank: int, timestamp: float) -> None:
        self.messages.append((reason, rank, timestamp))

    def count_restart(self, cause: RestartCause) -> None:
        self.messages.append(cause)


def of_pod(folder: Path) -> dict[str, str]:
    return {Env.RUN_DIR: str(folder), Env.RUN_ID: "run", Env.NODE_NAME: "node-a"}


def a_place() -> Assignment:
    """Return the place of a node in a group of one node."""
    (agent,) = SimulatedRun(a_policy(1, 1)).joined(0)
    assert agent.generation is not None
    return agent.generation


def test_a_crash_is_described_by_the_place_that_the_launcher_had_and_reported_once(tmp_path: Path) -> None:
    environ, journal = of_pod(tmp_path), Journal()
    file = LauncherRecordFile(environ)
    file.write(LauncherRecord(run_id="run", has_joined=True, generation=4, first_rank=6, crashes=1))
    assert file.record_crash(139, 50.0)
    later = PreviousLauncher("worker-3", environ, is_recorded=True)
    crash = later.crash
    found = (crash.generation, crash.rank, crash.node, crash.host, crash.exit_code, crash.timestamp)
    assert found == (4, 6, "worker-3", "node-a", 139, 50.0)
    later.report(journal)
    later.clear_crash()
    for _ in range(2):
        later.record_place(a_place(), journal)
    assert journal.messages == [(FailureReason.LAUNCHER_CRASH, 6, 50.0), RestartCause.FAILURE]
    group = {"generation": 1, "first_rank": 0, "crashes": 2}
    assert file.read() == LauncherRecord(run_id="run", has_joined=True, crashed_at=50.0, **group)
    later.launcher_ended()
    assert not (tmp_path / File.LAUNCHER).exists()


def test_a_crash_is_reported_by_a_later_launcher_if_none_has_reached_the_store_before(tmp_path: Path) -> None:
    environ = of_pod(tmp_path)
    file = LauncherRecordFile(environ)
    file.write(LauncherRecord(run_id="run", has_joined=True))
    assert file.record_crash(137, 50.0)
    assert not file.record_crash(139, 60.0)
    assert PreviousLauncher("worker-0", environ, is_recorded=True).crash.exit_code == 137


def test_a_crash_counts_from_the_first_group_on_and_not_of_a_spare(tmp_path: Path) -> None:
    file = LauncherRecordFile(of_pod(tmp_path))
    launcher = PreviousLauncher("worker-0", of_pod(tmp_path), is_recorded=True)
    launcher.clear_crash()
    assert not file.record_crash(137, 50.0)
    launcher.record_place(a_place(), Journal())
    assert file.record_crash(137, 60.0)
    PreviousLauncher("worker-0", of_pod(tmp_path), is_recorded=True).clear_crash()
    assert not file.record_crash(137, 70.0)
    assert PreviousLauncher("worker-0", of_pod(tmp_path), is_recorded=True).crash is None


def test_a_launcher_that_is_not_restarted_leaves_no_record(tmp_path: Path) -> None:
    PreviousLauncher("worker-0", of_pod(tmp_path), is_recorded=False).record_place(a_place(), Journal())
    assert list(tmp_path.iterdir()) == []
