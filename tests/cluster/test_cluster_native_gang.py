"""Kubernetes' own scheduler starts the nodes of a job together or not at all; skipped if its feature gates are off."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.kube.objects import condition_of
from kubectl_ddp.render.choose import GANG_KINDS
from kubectl_ddp.values.program import Gang
from tests.cluster.live_cluster import Namespace, until

NODES = "/api/v1/nodes"
PAIR = (
    *("--gang", "native", "--engine", "job", "--nnodes", "2", "--nproc", "1", "--cpu", "600m"),
    *("--memory", "64Mi", "--shm", "16Mi", "--command", "true"),
)

AddNode = Callable[[], None]


def served(space: Namespace) -> str:
    """Return the served API version of Workload and PodGroup; empty if the gates are off."""
    discovery = Discovery(space.api)
    kinds = (kind for gang, kind in GANG_KINDS if gang is Gang.NATIVE)
    return next((version for version, kind in kinds if discovery.resource_for_kind(version, kind)), "")


@pytest.fixture
def add_node(space: Namespace) -> Iterator[AddNode]:
    """Add a simulated node with one core for this test's pods. Pods bound to it stay pending."""
    uids: dict[str, str] = {}

    def add() -> None:
        name = f"{space.name}-{len(uids)}"
        taints = [{"key": "example.com/test", "value": space.name, "effect": "NoSchedule"}]
        node = {"metadata": {"name": name, "labels": {"example.com/test": space.name}}, "spec": {"taints": taints}}
        uids[name] = space.api.create(NODES, node)["metadata"]["uid"]
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": moment}
        room = {"cpu": "1", "memory": "1Gi", "pods": "10"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        space.api.merge(f"{NODES}/{name}/status", {"status": status})

    yield add
    for name, uid in uids.items():
        space.api.delete(f"{NODES}/{name}", uid=uid)


def submit(space: Namespace) -> None:
    """Submit the job ``pair`` to the nodes of this test, even if it does not fit yet."""
    where = ("--node-selector", f"example.com/test={space.name}", "--toleration", f"example.com/test={space.name}")
    space.ddp("submit", "--name", "pair", "--image", space.image, *PAIR, *where, "--preflight=warn").ok()


def test_two_pods_that_fit_only_together_start_together(space: Namespace, add_node: AddNode) -> None:
    if not (version := served(space)):
        pytest.skip("The feature gates GenericWorkload and GangScheduling of this cluster are off.")
    add_node()
    submit(space)
    path = space.path(version, "podgroups", "pair")

    def gang_status() -> str | None:
        found = space.api.get(path)
        types = ("PodGroupScheduled", "PodGroupInitiallyScheduled")  # the second since v1alpha3
        return next((condition["status"] for item in types if (condition := condition_of(found, item))), None)

    def machines() -> set[str]:
        return {pod["spec"]["nodeName"] for pod in space.pods() if "nodeName" in pod["spec"]}

    until("that the gang finds no room", lambda: gang_status() == "False")
    assert len(space.pods()) == 2
    assert not machines(), "one of them would have room"
    add_node()
    until("that both have a node", lambda: len(machines()) == 2)
    until("that the gang is scheduled", lambda: gang_status() == "True")
