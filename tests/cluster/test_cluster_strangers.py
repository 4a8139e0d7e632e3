"""Pods with the labels of a job, but without its secret: they cannot join, end, delay or crash its run."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench.drivers.node_access import ANSWER
from ddp_trainer.common.constants import Role
from ddp_trainer.launch.rendezvous.store import LINGER_SECONDS
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.stranger import counts_of, start_stranger

JOB = "digits"
MOST_SECONDS = 30
"""Within which the pods of a finished job end. A store that waits for a stranger's connection to end does not end."""
STEPS = 150
TRAINS = f"""\
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.zeros(1)
for _ in range({STEPS}):
    one = torch.ones(1)
    dist.all_reduce(one)
    total += one
    time.sleep(0.1)
dist.destroy_process_group()
print(f"sum {{int(total)}} at {{time.time()}}", flush=True)
"""


def machines(space: Namespace) -> list[str]:
    """Machines that take pods without tolerations."""
    nodes, _ = space.api.items("/api/v1/nodes")
    return [node["metadata"]["labels"]["kubernetes.io/hostname"] for node in nodes if not node["spec"].get("taints")]


def pods_of_job(space: Namespace, role: Role) -> list[dict[str, Any]]:
    return [pod for pod in space.pods(role) if pod["metadata"]["name"].startswith(JOB)]


def ended_at(pod: dict[str, Any]) -> float:
    """When its only container ended, the first time, in seconds since the epoch."""
    [status] = pod["status"]["containerStatuses"]
    assert (status["restartCount"], status["state"]["terminated"]["exitCode"]) == (0, 0), status
    return datetime.fromisoformat(status["state"]["terminated"]["finishedAt"]).timestamp()


@pytest.mark.timeout(400)
def test_a_run_with_strangers_that_have_its_labels_trains_as_alone_and_its_pods_end(
    space: Namespace, tmp_path: Path
) -> None:
    """On each machine there is a stranger with the labels of a worker, and one that is an endpoint of the store.

    A resolver prefers addresses of its own subnet, which is that of the machine: the agents find a stranger first.
    """
    roles = (Role.WORKER, Role.STORE)
    strangers = [start_stranger(space, JOB, role, machine) for machine in machines(space) for role in roles]
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    size = ("--nnodes", "2", "--nproc", "1", "--cpu", "250m", "--memory", "768Mi", "--shm", "64Mi", "--engine", "job")
    words = (
        *("--name", JOB, "--image", space.image, *size, "--max-restarts", "0"),
        *("--env", "DDP_LAST_SCRAPE=0", "--wait", "--timeout", "200s"),
    )
    done = space.ddp("submit", str(script), *words)

    workers = pods_of_job(space, Role.WORKER)
    logs = [
        space.api.text(space.path("v1", "pods", f"{pod['metadata']['name']}/log"), limits=ANSWER) for pod in workers
    ]
    assert done.code == 0, "\n".join([done.err, *logs])
    assert len(logs) == 2
    sums = [re.findall(r"sum (\d+) at ([\d.]+)", log) for log in logs]
    assert [[int(total) for total, _ in item] for item in sums] == [[2 * STEPS]] * 2, logs
    assert [re.findall(r"generation (\d+)", log) for log in logs] == [["1"]] * 2, logs

    lasted = [ended_at(worker) - float(over) for worker, [(_, over)] in zip(workers, sums, strict=True)]
    print(f"workers ended {max(lasted):.1f} s after their program")  # of a clock that shows whole seconds
    assert max(lasted) <= MOST_SECONDS
    [store] = until(
        "the end of the store",
        lambda: [pod for pod in pods_of_job(space, Role.STORE) if pod["status"]["phase"] == "Succeeded"],
    )
    print(f"the store ended {ended_at(store) - max(map(ended_at, workers)):.1f} s after the workers")
    assert ended_at(store) - max(map(ended_at, workers)) <= LINGER_SECONDS + MOST_SECONDS
    text = space.api.text(space.path("v1", "pods", f"{store['metadata']['name']}/log"), limits=ANSWER)
    assert "Traceback" not in text
    assert len(text.splitlines()) < 200, "the log grew with the number of connections"

    counts = {name: counts_of(space, name) for name in strangers}
    assert all(item["connected"] and item["held"] for item in counts.values()), counts
    assert any(item["agents"] for item in counts.values()), "no agent or stranger took one for the store"
    assert not any(item["started"] for item in counts.values()), counts
