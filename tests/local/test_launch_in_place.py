"""Launchers that crash under a resident parent, as in every worker pod: real processes, a real store."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Env, File
from tests.local.launch_harness import LOOP, Running, Stage, is_alive, stage_of, wait_until

IN_PLACE = {Env.RESTART_IN_PLACE: "1"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from stage_of(tmp_path)


def launcher_of(parent: Running) -> int:
    """The only child of a resident parent."""
    (pid,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    return int(pid)


def pod(stage: Stage, index: int, *arguments: str, restarts: int) -> tuple[Running, dict[str, str]]:
    """A launcher as in a worker pod, and its variables."""
    run_dir = stage.folder / f"pod-{index}"
    files = {Env.RUN_DIR: str(run_dir), Env.TERMINATION_LOG: str(run_dir / "termination"), Env.RUN_ID: "run"}
    env = {**IN_PLACE, **files, Env.METRICS_PORT: "0"}
    return stage.agent(index, *arguments, restarts=restarts, **env), files


def running(parent: Running, generation: int) -> int:
    """The worker of rank 1 in a whole group."""
    return int(parent.line(rf"rank=1 generation={generation} world=2 pid=(\d+) runs")[1])


def test_a_launcher_that_crashes_is_back_in_its_place_until_the_budget_is_spent(stage: Stage) -> None:
    stage.store("--run-id", "run")
    script = stage.script(LOOP)
    peer, _ = pod(stage, 0, script, stage.done(), restarts=2)
    victim, files = pod(stage, 1, script, stage.done(), restarts=2)
    for generation, which in enumerate((signal.SIGKILL, signal.SIGSEGV), start=1):
        worker = running(victim, generation)
        os.kill(launcher_of(victim), which)
        assert running(victim, generation + 1)
        assert not is_alive(worker)
        assert f"The launcher died of {which.name}. It is started again in this pod" in victim.output
    record = json.loads((Path(files[Env.RUN_DIR]) / File.LAUNCHER).read_text())
    assert (record["crashes"], record["exit_code"], record["first_rank"]) == (2, 0, 1)
    os.kill(launcher_of(victim), signal.SIGKILL)
    assert (victim.code(), peer.code()) == (93, 93)
    assert "The launcher died of SIGKILL, and its workers with it, on worker-1" in peer.output
    told = json.loads(Path(files[Env.TERMINATION_LOG]).read_text())
    assert (told["reason"], told["exit_code"], told["restarts"]["failure"]) == ("launcher_crash", 137, 2)
    assert not (Path(files[Env.RUN_DIR]) / File.LAUNCHER).exists()


def test_sigterm_gives_workers_their_grace_and_no_other_launcher(stage: Stage) -> None:
    stage.store("--run-id", "run")
    parent, _ = pod(stage, 0, "--nnodes=1", stage.script(LOOP), stage.done(), restarts=2)
    parent.line("runs")
    parent.send(signal.SIGTERM)
    assert parent.code() == 143
    assert "rank=0 generation=1 stops" in parent.output
    assert "started again" not in parent.output


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(7)", 7), ("", 0)])
def test_the_exit_code_of_the_program_passes_through(stage: Stage, program: str, code: int) -> None:
    assert stage.launch("--standalone", stage.script(program), **IN_PLACE).code() == code


def test_a_launcher_that_dies_before_it_has_joined_is_started_three_times(stage: Stage) -> None:
    parent = stage.agent(0, stage.script(""), **IN_PLACE)  # there is no store
    for _ in range(3):
        launcher = wait_for_launcher(parent)
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda gone=launcher: not is_alive(gone), "killed")
    assert parent.code() == 137
    assert "3 times in a row before it had joined the run; exit code 137" in parent.output


def wait_for_launcher(parent: Running) -> int:
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    wait_until(lambda: any(is_alive(int(pid)) for pid in children.read_text().split()), "no launcher")
    return launcher_of(parent)
