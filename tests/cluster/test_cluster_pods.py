"""A worker pod that receives SIGTERM: its processes, and the checkpoint that it leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.drivers.node_access import ANSWER, NodeAccess, workers
from ddp_trainer.common.constants import Exit
from tests.cluster.live_cluster import Namespace, until

SMALL = ("--nnodes", "1", "--cpu", "1", "--memory", "1Gi", "--shm", "64Mi")
HOSTNAME = "kubernetes.io/hostname"

LEAVING_ORPHANS = """
import os, pathlib, signal, subprocess, sys, time

rank = os.environ["RANK"]
here = pathlib.Path("/tmp")

def stop(*_):
    print(f"rank {rank} got SIGTERM", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
(here / f"ready-{rank}").touch()
if rank == "0":
    subprocess.run(["sh", "-c", "sleep 0.3 & exit 0"], check=True)
    while not (here / "ready-1").exists():
        time.sleep(0.05)
    time.sleep(1)
    zombies = 0
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            zombies += stat.read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass  # the process has ended and was reaped
    print(f"{zombies} zombies", flush=True)
    os.kill(1, signal.SIGTERM)
time.sleep(60)
"""


def test_the_first_process_of_a_pod_reaps_orphans_and_tells_every_rank_to_stop(
    space: Namespace, tmp_path: Path
) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(LEAVING_ORPHANS)
    space.ddp(
        "submit", str(script), "--name", "orphans", "--image", space.image, "--engine", "job", "--nproc", "2", *SMALL
    ).ok()

    def ended() -> str:
        over = [pod["metadata"]["name"] for pod in space.pods() if pod["status"]["phase"] == "Failed"]
        return over[0] if over else ""

    name = until("the first pod to end", ended)
    path = space.path("v1", "pods", name)
    [container] = space.api.get(path)["status"]["containerStatuses"]
    assert container["state"]["terminated"]["exitCode"] == Exit.TERMINATED
    log = space.api.text(f"{path}/log", limits=ANSWER)
    lines = {line.partition("] ")[2] for line in log.splitlines()}
    assert {"0 zombies", "rank 0 got SIGTERM", "rank 1 got SIGTERM"} <= lines


PACED = """
import os, pathlib, time
from ddp_workloads.digits import Digits, LabeledImages

BEGUN = pathlib.Path(os.environ["DDP_CHECKPOINT_DIR"], "begun")
IS_FIRST = not BEGUN.exists()

class Slow(LabeledImages):
    def batch(self, ids):
        if IS_FIRST:
            BEGUN.touch()
            time.sleep(0.05)
        return super().batch(ids)

class Paced(Digits):
    def train_samples(self):
        return Slow(self._train.images, self._train.labels)
"""
"""Digits whose first run takes over a minute, so that the test can suspend it in time."""


@pytest.fixture
def claim(space: Namespace, reach: NodeAccess) -> Iterator[tuple[str, str]]:
    """A claim of a volume that outlives pods, and the node that holds it."""
    node = workers(space.api)[0]
    volume = {
        "metadata": {"name": space.name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": reach.folder(node, space.name), "type": "Directory"},
        },
    }
    made = space.api.create("/api/v1/persistentvolumes", volume)
    wanted = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": space.name,
        "resources": {"requests": {"storage": "1Gi"}},
    }
    space.api.create(space.path("v1", "persistentvolumeclaims"), {"metadata": {"name": "kept"}, "spec": wanted})
    yield "kept", node
    reach.delete_folder(node, space.name)
    space.api.delete(f"/api/v1/persistentvolumes/{space.name}", uid=made["metadata"]["uid"])


@pytest.mark.timeout(300)
def test_a_job_that_was_suspended_goes_on_from_the_step_that_it_saved(
    space: Namespace, claim: tuple[str, str], tmp_path: Path
) -> None:
    name, node = claim
    code = tmp_path / "code"
    code.mkdir()
    (code / "paced.py").write_text(PACED)
    flags = ("--checkpoint-claim", name, "--node-selector", f"{HOSTNAME}={node}", "--nproc", "2", *SMALL)
    program = ("--code", str(code), "--module", "ddp_trainer")
    train = ("train", "--task", "paced:Paced", "--epochs", "40", "--seed", "0")
    space.ddp("submit", "--name", "digits", "--image", space.image, *flags, *program, "--", *train).ok()
    space.ddp("wait", "digits", "--for=step=20", "--timeout", "2m").ok()

    space.ddp("suspend", "digits").ok()
    until("no pod", lambda: not space.pods())
    space.ddp("resume", "digits").ok()
    done = space.ddp("wait", "digits", "--for=complete", "--timeout", "3m")
    assert done.code == 0, done.err

    match = re.search(r"resumed after step (\d+)", space.ddp("logs", "digits").ok().out)
    assert match
    assert 20 <= int(match[1]) < 900
    summary = space.ddp("status", "digits", "-o", "json").ok().json["summary"]
    assert (summary["samples_lost"], summary["samples_repeated"]) == (0, 0)
    assert summary["accuracy"] >= 0.97
