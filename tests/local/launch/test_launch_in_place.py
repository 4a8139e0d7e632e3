"""Launchers that crash under a resident parent, as in every worker pod: real processes, a real store."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from bench.drivers.fork_server import fork_server_pids, is_fork_server_ready
from ddp_trainer.common.constants import Env, File
from ddp_trainer.process.process_tree import children_of
from tests.support.launch_harness import LOOP, Running, Stage, is_alive, wait_until

IN_PLACE = {Env.RESTART_IN_PLACE: "1"}
TORCH = """
from types import SimpleNamespace
cuda = SimpleNamespace(is_initialized=bool)
default_generator = SimpleNamespace(seed=int)
"""
"""Stands for torch, which a fork server imports; a file beside it is mapped by workers as torch's library is."""
MAPPED = """
import mmap, os, sys
with open(os.path.join(os.environ["PYTHONPATH"], "libtorch.so"), "rb") as library:
    mapped = mmap.mmap(library.fileno(), 0, access=mmap.ACCESS_READ)
os.write(1, f"generation={os.environ['DDP_GENERATION']} is_forked={'torch' in sys.modules}\\n".encode())
"""


def launcher_of(parent: Running) -> int:
    """The only child of a resident parent."""
    (pid,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    return int(pid)


def pod(stage: Stage, index: int, *arguments: str, restarts: int, **more: str) -> tuple[Running, dict[str, str]]:
    """A launcher as in a worker pod, and its variables."""
    run_dir = stage.folder / f"pod-{index}"
    files = {Env.RUN_DIR: str(run_dir), Env.TERMINATION_LOG: str(run_dir / "termination"), Env.RUN_ID: "run"}
    env = {**IN_PLACE, **files, Env.METRICS_PORT: "0", **more}
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
    document = json.loads(Path(files[Env.TERMINATION_LOG]).read_text())
    assert (document["reason"], document["exit_code"], document["restarts"]["failure"]) == ("launcher_crash", 137, 2)
    assert not (Path(files[Env.RUN_DIR]) / File.LAUNCHER).exists()


@pytest.fixture
def with_fork_server(stage: Stage, tmp_path: Path) -> tuple[Running, str]:
    """A pod whose workers are worth a fork server, and its run directory."""
    (tmp_path / "libtorch.so").write_text("code")
    (tmp_path / "torch.py").write_text(TORCH)
    stage.store("--run-id", "run")
    env = {"PYTHONPATH": str(tmp_path), "DDP_FORK_SERVER": "0.02"}
    parent, files = pod(stage, 0, "--nnodes=1", stage.script(MAPPED + LOOP), stage.done(), restarts=3, **env)
    parent.line("generation=1 is_forked=False")
    return parent, files[Env.RUN_DIR]


def forked(parent: Running, generation: int) -> list[int]:
    """Kill a launcher whose fork server is ready; the processes of the next one, whose worker was forked."""
    launcher = launcher_of(parent)
    wait_until(lambda: is_fork_server_ready(launcher), "the fork server does not get ready")
    before = [launcher, *fork_server_pids(launcher)]
    os.kill(launcher, signal.SIGKILL)
    parent.line(f"generation={generation} is_forked=True")
    assert not any(is_alive(pid) for pid in before)
    launcher = launcher_of(parent)
    return [launcher, *children_of(launcher)]


def test_the_fork_server_outlives_a_crash_and_forks_the_next_workers(with_fork_server: tuple[Running, str]) -> None:
    parent, run_dir = with_fork_server
    for generation in (2, 3):
        living = forked(parent, generation)
        assert fork_server_pids(living[0])
    os.kill(fork_server_pids(living[0])[0], signal.SIGSTOP)  # one that does not answer is given up
    os.kill(living[0], signal.SIGKILL)
    parent.line("generation=4 is_forked=False")
    assert not any(is_alive(pid) for pid in living)
    assert json.loads((Path(run_dir) / File.LAUNCHER).read_text())["crashes"] == 3
    living = [launcher_of(parent), *children_of(launcher_of(parent))]
    os.kill(launcher_of(parent), signal.SIGKILL)  # the budget is spent
    assert parent.code() == 93
    assert not any(is_alive(pid) for pid in living)


def test_nothing_outlives_a_parent_that_is_killed(with_fork_server: tuple[Running, str]) -> None:
    parent, _ = with_fork_server
    living = forked(parent, 2)
    parent.send(signal.SIGKILL)
    parent.code()
    wait_until(lambda: not any(is_alive(pid) for pid in living), "something outlived the parent")


def test_sigterm_gives_workers_their_grace_and_no_other_launcher(stage: Stage) -> None:
    stage.store("--run-id", "run")
    parent, _ = pod(stage, 0, "--nnodes=1", stage.script(LOOP), stage.done(), restarts=2)
    parent.line("runs")
    parent.send(signal.SIGTERM)
    assert parent.code() == 143
    assert "rank=0 generation=1 stops" in parent.output
    assert "started again" not in parent.output
