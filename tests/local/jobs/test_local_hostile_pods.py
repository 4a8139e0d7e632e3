"""Pods that offer a gibibyte, or never end their answer: commands keep their memory, and the controller its work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_server import Answer, ApiServer, Request, kubeconfig, serving
from tests.support.hostile_answers import hostile
from tests.support.launch_harness import wait_until
from tests.support.ports import free_port
from tests.unit.ddp_controller.controller_jobs import DRAINING, GROUPS, LEASE, NOW, moving, pod, root, store

PODS = "/api/v1/namespaces/team/pods"
HONEST = 'ddp_worker_group_state{state="running"} 1\n'
SETTLED = NOW - time.time() + 30
"""Seconds before the time of the tests' objects: half a minute before the present."""


class HostileServer(ApiServer):
    """An API server behind whose proxy some pods are hostile."""

    def __init__(self) -> None:
        super().__init__(GROUPS)
        self.hostile: dict[str, str] = {}
        """Pod → its answer, a key of ``HOSTILE``."""
        self.evicted = threading.Event()
        self.renewed: list[float] = []
        self.read: dict[str, int] = {}

    def answer(self, request: Request) -> Answer:
        if "/proxy/" in request.path:
            name = request.path.removeprefix(f"{PODS}/").partition(":")[0]
            self.read[name] = self.read.get(name, 0) + 1
            return hostile(self.hostile[name]) if name in self.hostile else Answer(200, HONEST)
        if "/selfsubject" in request.path:  # every right is granted
            every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            return Answer(201, {"status": {"allowed": True, "resourceRules": [every]}})
        if request.path == LEASE:
            self.renewed.append(time.monotonic())
        if request.path.endswith("/eviction"):
            self.evicted.set()
            return Answer(201)
        return super().answer(request)


@pytest.fixture
def hostile_server() -> Iterator[HostileServer]:
    with serving(HostileServer()) as running:
        yield running


@pytest.fixture
def environ(hostile_server: HostileServer, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig(tmp_path, hostile_server.url))}


def test_a_controller_under_five_hostile_pods_keeps_its_lease_and_moves_another_job(
    hostile_server: HostileServer, environ: dict[str, str]
) -> None:
    attacks = ("a gibibyte in chunks", "a gibibyte of empty lines", "chunks of a byte", "drops", "a bomb")
    hostile_server.put(
        f"/api/v1/nodes/{DRAINING}", {"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}, "status": {}}
    )
    hostile_server.put(
        "/apis/batch/v1/namespaces/team/jobs/evil", root(6, name="evil", annotations=moving(5), nnodes="5")
    )
    hostile_server.hostile = {f"evil-{index}": attack for index, attack in enumerate(attacks)}
    for name in hostile_server.hostile:
        hostile_server.put(f"{PODS}/{name}", pod(int(name[-1]), ready=NOW - time.time(), name="evil"))
    command = [sys.executable, "-m", "ddp_controller", "--namespace", "team", "--port", str(free_port())]
    process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: all(hostile_server.read.get(name) for name in hostile_server.hostile), "hostile pods are not read"
        )
        hostile_server.put("/apis/batch/v1/namespaces/team/jobs/digits", root(3, annotations=moving(2)))
        hostile_server.put(f"{PODS}/digits-store-0", store(runs=SETTLED))
        for index in range(3):
            hostile_server.put(f"{PODS}/digits-{index}", pod(index, DRAINING if index == 0 else "fine", ready=SETTLED))
        began = time.monotonic()
        assert hostile_server.evicted.wait(20), "the pod on the doomed node has to leave"
        assert time.monotonic() - began < 5
        wait_until(lambda: hostile_server.renewed[-1] - began > 5, "the Lease is not renewed")
        gaps = [
            after - before for before, after in zip(hostile_server.renewed, hostile_server.renewed[1:], strict=False)
        ]
        assert max(gaps) < 8, "the Lease has to be renewed within 10 s"
        [peak] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    finally:
        process.terminate()
        assert process.wait(20) == 0
    assert int(peak) < 128 << 10
