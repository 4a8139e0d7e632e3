"""Kueue's own controller decides about our jobs: it admits one, and the next of each engine waits behind it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from kubectl_ddp import roots
from kubectl_ddp.cluster.refusals import NotServed
from kubectl_ddp.cluster.resources import collection
from tests.cluster.live_cluster import Json, Namespace, until

KUEUE = "kueue.x-k8s.io/v1beta2"
TINY = ("--nproc", "1", "--cpu", "60m", "--memory", "128Mi", "--shm", "16Mi", "--command", "sleep 3600")


@pytest.fixture
def queue(space: Namespace) -> Iterator[str]:
    """A LocalQueue with quota for one small node, and what it needs of the cluster, named like the test's namespace."""
    name = space.name
    quota = [{"name": "cpu", "nominalQuota": "100m"}, {"name": "memory", "nominalQuota": "4Gi"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": name, "resources": quota}]}
    specs: dict[tuple[str, str], Json] = {
        ("ResourceFlavor", "resourceflavors"): {"spec": {}},
        ("ClusterQueue", "clusterqueues"): {
            "spec": {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [group],
            }
        },
        ("WorkloadPriorityClass", "workloadpriorityclasses"): {"value": 1000},
    }
    with contextlib.ExitStack() as undo:
        for (kind, plural), item in specs.items():
            path = collection(KUEUE, plural, None)
            about = {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}}
            try:
                uid = space.api.create(path, {**about, **item})["metadata"]["uid"]
            except NotServed:
                pytest.skip("This cluster has no Kueue.")
            undo.callback(space.api.delete, f"{path}/{name}", uid=uid)
        local = {
            "apiVersion": KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": "team"},
            "spec": {"clusterQueue": name},
        }
        space.api.create(space.path(KUEUE, "localqueues"), local)
        undo.callback(space.ddp, "delete", "--all", "--yes")
        yield "team"


def test_kueue_admits_a_job_and_lets_those_of_every_engine_wait(space: Namespace, queue: str) -> None:
    def submit(name: str, engine: str) -> str:
        words = ("--name", name, "--engine", engine, "--image", space.image, "--queue", queue, "--nnodes", "1")
        return space.ddp("submit", *words, *TINY, environ={"KUBECTL_DDP_PREFLIGHT": ""}).ok().err

    def admitted() -> dict[str, bool]:
        found, _ = space.api.items(space.path(KUEUE, "workloads"))
        return {
            item["metadata"]["ownerReferences"][0]["name"]: any(
                each["type"] == "Admitted" and each["status"] == "True"
                for each in (item.get("status") or {}).get("conditions") or ()
            )
            for item in found
        }

    submit("first", "job")
    until("that the first is admitted", lambda: admitted().get("first"))
    for engine in roots.ROOTS:
        submit(f"of-{engine}", engine)
    names = {f"of-{engine}" for engine in roots.ROOTS}
    until("that the others are known to Kueue", lambda: names <= admitted().keys())
    assert admitted() == {"first": True} | dict.fromkeys(names, False)
    told = space.ddp("preflight", "--image", space.image, "--queue", queue, "--engine", "job", *TINY).ok().out
    assert f"4 jobs wait in the same queue; the next is {space.name}/of-pytorchjob." in told
    never = space.ddp("preflight", "--image", space.image, "--queue", queue, "--nnodes", "2", *TINY)
    assert (never.code, "can never admit 2 nodes" in never.out) == (4, True)
