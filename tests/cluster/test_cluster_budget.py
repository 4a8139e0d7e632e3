"""The restart budget on every engine: after N restarts of a rank that a signal kills, the job fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_engines import ENGINES, need

FLAGS = ("--nnodes", "2", "--nproc", "1", "--cpu", "250m", "--memory", "256Mi", "--shm", "64Mi")
RESTARTS = 2
SCRIPT = """
import os, signal, sys, time
print("begins", flush=True)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(600)
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_job_restarts_as_often_as_its_budget_allows_and_then_fails_with_its_first_error(
    space: Namespace, tmp_path: Path, engine: str
) -> None:
    need(space, engine)
    script = tmp_path / "dies.py"
    script.write_text(SCRIPT)
    words = ("--name", "dies", "--image", space.image, "--engine", engine, "--max-restarts", str(RESTARTS), *FLAGS)
    space.ddp("submit", *words, str(script)).ok()
    done = space.ddp("wait", "dies", "--timeout", "200s")
    assert done.code == 10, f"{done.out}{done.err}"
    state = until("failure", lambda: _failed(space))
    assert sum(state["restarts"].values()) == RESTARTS, state
    error = state["first_error"]
    signalled = int(Exit.SIGNAL_BASE) + 11
    assert (error["rank"], error["exit_code"], error["pod_exit_code"]) == (1, signalled, Exit.DO_NOT_RESTART)
    (listed,) = space.ddp("list", "-o", "json").ok().json["items"]
    assert (listed["state"], sum(listed["restarts"].values())) == ("Failed", RESTARTS)


def _failed(space: Namespace) -> dict | None:
    state = space.ddp("status", "dies", "-o", "json").ok().json
    return state if state["state"] == "Failed" else None
