"""The whole slice on one machine: submit digits, lose a worker and a launcher, be watched, end with a true result."""

from __future__ import annotations

import json
import os
import signal

import pytest

from ddp_trainer.common.constants import Label, Role
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.process.process_tree import parent_of
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status.metrics_parser import parse
from tests.support.local_place import Place, Typed


def worker_of_rank(place: Place, rank: int) -> int:
    for pod in place.job("digits").pods:
        if pod["metadata"]["labels"][Label.ROLE] == Role.WORKER:
            pid = parse(place.metrics(pod)).value(Metric.RANK_PID, rank=str(rank))
            if pid is not None:
                return int(pid)
    raise AssertionError(f"no process is rank {rank}")


@pytest.mark.long  # `make demo` kills a worker of the same job, and launchers die in test_launch_in_place.py
@pytest.mark.timeout(240)
def test_digits_on_two_nodes_survives_a_killed_worker_and_launcher_and_loses_no_sample(
    place: Place, typed: Typed
) -> None:
    training = ["train", "--task", "digits", "--epochs", "30", "--global-batch", "64", "--seed", "0"]
    words = ("--module", "ddp_trainer", "--name", "digits", "--nnodes", "2", "--nproc", "2")
    assert typed("submit", "--local", *words, "--", *training).returncode == 0
    state = wait_for(place, "digits", parse_wait_condition("step=50"), timeout=120)
    assert state.world_size == 4
    assert [rank.rank for rank in observe(place, place.job("digits")).ranks] == [0, 1, 2, 3]
    os.kill(worker_of_rank(place, 3), signal.SIGKILL)
    wait_for(place, "digits", parse_wait_condition("step=150"), timeout=120)
    launcher = parent_of(worker_of_rank(place, 3))
    assert launcher is not None
    os.kill(launcher, signal.SIGKILL)
    done = wait_for(place, "digits", parse_wait_condition("complete"), timeout=180)
    assert done.summary is not None
    assert done.restarts == {"failure": 2, "resize": 1}
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in place.job("digits").pods] == [0, 0, 0]
    assert (done.summary["samples_lost"], done.summary["samples_repeated"]) == (0, 0)
    assert done.summary["accuracy"] >= 0.97
    place.ended()
    assert json.loads(place.files().summary_file.read_text())["samples_lost"] == 0
    assert any(line.startswith("[rank0] ") for line in [*place.lines(0), *place.lines(1)])
