"""The parent that restarts a crashed launcher, with a launcher that is a function of the test."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env, File
from ddp_trainer.launch.host.parent_link import LauncherRecord, LauncherRecordFile
from ddp_trainer.launch.resident_parent import MOST_EARLY_CRASHES
from tests.support.programs import captured

PROGRAM = """
import os, pathlib, signal, subprocess, sys
from ddp_trainer.launch import resident_parent
from ddp_trainer.launch.host.parent_link import LauncherRecord, LauncherRecordFile

def launch(_):
    record = LauncherRecordFile(os.environ)
    crashes = record.read().crashes
    print("crashes", crashes, "wanted", os.environ.get("DDP_RESTART_IN_PLACE"), flush=True)
    {body}

sys.exit(resident_parent.run(launch))
"""
JOINED = "record.write(LauncherRecord(run_id='r', has_joined=True, crashes=crashes))"


def run(folder: Path, *body: str) -> subprocess.CompletedProcess[str]:
    """Run the parent until it ends, with these statements in its launcher."""
    environ = {Env.RUN_DIR: str(folder), Env.RUN_ID: "r", Env.RESTART_IN_PLACE: "1"}
    command = [sys.executable, "-c", PROGRAM.replace("{body}", "\n    ".join(body))]
    return captured(command, env=environ, timeout=60)


def test_an_internal_error_is_a_crash_and_is_printed(tmp_path: Path) -> None:
    done = run(tmp_path, "if crashes == 1: return 0", JOINED, "raise RuntimeError('of the launcher')")
    assert done.returncode == 0
    assert "RuntimeError: of the launcher" in done.stderr
    assert "The launcher died of SIGABRT. It is started again in this pod." in done.stderr


def test_crashes_before_it_has_joined_end_the_pod_with_the_code_of_the_signal(tmp_path: Path) -> None:
    done = run(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)")
    assert done.returncode == 128 + signal.SIGSEGV
    assert len(done.stdout.splitlines()) == MOST_EARLY_CRASHES
    assert not (tmp_path / File.LAUNCHER).exists()


@pytest.mark.parametrize("which", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_a_signal_that_the_launcher_may_handle_is_forwarded_to_it(tmp_path: Path, which: str) -> None:
    awaited = f"{{signal.{which}}}"
    block = f"signal.pthread_sigmask(signal.SIG_BLOCK, {awaited})"
    done = run(tmp_path, block, f"os.kill(os.getppid(), signal.{which})", f"signal.sigwait({awaited})", "return 5")
    assert done.returncode == 5


def test_processes_that_left_the_group_of_a_dead_launcher_are_dead_before_the_next_one(tmp_path: Path) -> None:
    marker_line = f"marker = pathlib.Path({str(tmp_path / 'pid')!r})"
    check = "if crashes: return int(os.path.exists('/proc/' + marker.read_text()))"
    orphan = "marker.write_text(str(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid))"
    assert run(tmp_path, marker_line, check, orphan, JOINED, "os.kill(os.getpid(), signal.SIGKILL)").returncode == 0


@pytest.mark.parametrize(("run_id", "crashes"), [("r", 3), ("of another run", 0)])
def test_a_container_that_died_with_its_launcher_is_a_crash_of_its_run(
    tmp_path: Path, run_id: str, crashes: int
) -> None:
    earlier = LauncherRecord(run_id=run_id, has_joined=True, crashes=2)
    LauncherRecordFile({Env.RUN_DIR: str(tmp_path), Env.RUN_ID: run_id}).write(earlier)
    assert run(tmp_path, "return crashes").returncode == crashes


def test_a_second_launcher_in_the_pod_has_no_parent_and_leaves_the_record_of_the_first(tmp_path: Path) -> None:
    second = (
        "from ddp_trainer.launch import resident_parent as p; raise SystemExit(p.run(lambda link: 4 if link else 3))"
    )
    start = f"code = subprocess.run([sys.executable, '-c', {second!r}], env=os.environ).returncode"
    wanted = "os.environ['DDP_RESTART_IN_PLACE'] = '1'"
    assert run(tmp_path, JOINED, wanted, start, "return code if record.read().has_joined else 9").returncode == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": "r", "later": 1}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / File.LAUNCHER).write_text(text)
    assert LauncherRecordFile({Env.RUN_DIR: str(tmp_path), Env.RUN_ID: "r"}).read() == LauncherRecord(run_id="r")


@pytest.mark.parametrize("missing", [Env.RUN_DIR, Env.RUN_ID])
def test_without_a_run_and_its_directory_there_is_no_record(tmp_path: Path, missing: Env) -> None:
    environ: dict[str, str] = {Env.RUN_DIR: str(tmp_path), Env.RUN_ID: "r"}
    environ[missing] = ""
    file = LauncherRecordFile(environ)
    file.write(LauncherRecord(run_id=environ[Env.RUN_ID], has_joined=True))
    assert not file.record_crash(137, 50.0)
    assert list(tmp_path.iterdir()) == []
