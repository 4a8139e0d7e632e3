"""A running local job as a real Prometheus sees it, and its linter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Port
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status import termination_message
from tests.support.local_place import Place, a_place
from tests.support.prometheus_server import answers, prometheus

TRAIN = ["--", "train", "--task", "digits", "--epochs", "100000"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with a_place(tmp_path / "state", HOME=str(tmp_path)) as found:
        found.environ.pop("KUBECONFIG", None)
        yield found


def test_a_prometheus_finds_every_rank_of_a_running_job(place: Place, tmp_path: Path) -> None:
    shape = ["--name", "digits", "--nnodes", "2", "--nproc", "2", "--module", "ddp_trainer"]
    program = str(Path(sys.executable).with_name("kubectl-ddp"))
    subprocess.run([program, "submit", "--local", *shape, *TRAIN], env=place.environ, check=True, capture_output=True)
    wait_for(place, "digits", parse_wait_condition("step=1"), timeout=120)
    pods = termination_message.workers(place.job("digits").pods)
    targets = [f"{pod['status']['podIP']}:{Port.METRICS.value}" for pod in pods]
    assert len(targets) == 2
    with prometheus(tmp_path, targets) as ask:
        assert answers(ask, 'ddp_rank_up{ddp_job="digits"} == 1', count=4) == [(str(rank), "1") for rank in range(4)]
        assert [rank for rank, _ in answers(ask, "ddp_steps_total > 0", count=4)] == ["0", "1", "2", "3"]
    if shutil.which("promtool") is not None:
        for pod in pods:
            linted = subprocess.run(
                ["promtool", "check", "metrics"],
                input=place.metrics(pod),
                capture_output=True,
                text=True,
                check=False,
            )
            assert (linted.returncode, linted.stdout, linted.stderr) == (0, "", "")
