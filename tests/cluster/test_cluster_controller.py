"""The controller on a real cluster: a pod moves once its replacement is ready, and an elastic job shrinks."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.errors import Unreachable
from tests.cluster.live_cluster import RESTRICTED, Json, Namespace, until
from tests.support.ports import free_port

BUDGETS = ("policy/v1", "poddisruptionbudgets")


@contextlib.contextmanager
def controller(space: Namespace, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a controller for the test's namespace; it must exit with 0 after SIGTERM."""
    port = free_port()
    details = ["--namespace", space.name, "--only-namespace", space.name, "--port", str(port), "--settle", "1"]
    process = subprocess.Popen([sys.executable, "-m", "ddp_controller", *details, *flags])
    try:
        until("the controller", lambda: _is_ready(port))
        yield process
        process.terminate()
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def marked(api: Api, node: str, key: str) -> Iterator[None]:
    """Taint a node for this test's controller only; the scheduler may still use the node."""

    def change(*, there: bool) -> bool:
        found = api.get(f"/api/v1/nodes/{node}")
        taints = [taint for taint in found["spec"].get("taints") or () if taint["key"] != key]
        taints += [{"key": key, "effect": "PreferNoSchedule"}] if there else []
        version = found["metadata"]["resourceVersion"]
        try:
            api.merge(f"/api/v1/nodes/{node}", {"metadata": {"resourceVersion": version}, "spec": {"taints": taints}})
        except Conflict:
            return False
        return True

    until("the taint", lambda: change(there=True))
    try:
        yield
    finally:
        until("the end of the taint", lambda: change(there=False))


def ready(pods: list[Json]) -> set[str]:
    """Return the UIDs of the ready pods."""
    return {
        pod["metadata"]["uid"]
        for pod in pods
        for condition in pod["status"].get("conditions") or ()
        if condition["type"] == "Ready" and condition["status"] == "True" and "deletionTimestamp" not in pod["metadata"]
    }


def test_a_pod_leaves_its_node_after_a_replacement_has_come_and_drains_wait_for_that(
    space: Namespace, tmp_path: Path
) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import time\ntime.sleep(3600)\n")
    size = ("--nnodes", "2", "--nproc", "1", "--cpu", "50m", "--memory", "128Mi", "--shm", "16Mi", "--grace", "5s")
    space.ddp("submit", str(script), "--name", "mover", "--engine", "job", "--image", space.image, *size).ok()
    before = until("two pods", lambda: pods if len(ready(pods := space.pods())) == 2 else None)
    taint = f"{space.name}.example.com/goes"
    least = 2

    def moved() -> bool:
        nonlocal least
        now = ready(space.pods())
        least = min(least, len(now))
        return before[0]["metadata"]["uid"] not in now

    with controller(space, "--taint", taint):
        until("a budget", lambda: budget_of(space) == 2)
        with pytest.raises(Unreachable, match="disruption budget"):
            space.api.evict(before[0])
        with marked(space.api, before[0]["spec"]["nodeName"], taint):
            until("that the first pod has moved", moved)
        until("the old size", lambda: root_of(space, "mover")["spec"]["parallelism"] == 2 and moved())
        until("that all is done", lambda: len(ready(space.pods())) == 2 and budget_of(space) == 2)
    assert least == 2
    assert "ddp.dev/move" not in root_of(space, "mover")["metadata"]["annotations"]
    assert budget_of(space) is None, "a budget without a controller would block every drain"


def test_an_elastic_job_makes_room_for_one_of_higher_priority_and_gets_its_size_back(
    space: Namespace, queue: str
) -> None:
    spec = json.dumps({"nnodes": "1:3", "nproc": 1})
    notes = {"ddp.dev/spec": spec, "kueue.x-k8s.io/elastic-job": "true"}
    with controller(space):
        create_job(space, queue, "low", 3, annotations=notes)
        first = until("three pods", lambda: pods if len(ready(pods := space.pods())) == 3 else None)[0]
        high = create_job(space, queue, "high", 2, labels={"kueue.x-k8s.io/priority-class": queue})
        until("that the other is admitted", lambda: not root_of(space, "high")["spec"]["suspend"])
        low = root_of(space, "low")
        assert (low["spec"]["parallelism"], low["spec"]["completions"]) == (1, 1)
        assert json.loads(low["metadata"]["annotations"]["ddp.dev/size"])["granted"] == 1
        space.api.delete(space.path("batch/v1", "jobs", "high"), uid=high["metadata"]["uid"])
        until("its old size", lambda: len(ready(space.pods())) == 3)
    assert first["metadata"]["uid"] in ready(space.pods()), "the pod that stayed was never restarted"
    assert json.loads(root_of(space, "low")["metadata"]["annotations"]["ddp.dev/size"])["granted"] == 3


def root_of(space: Namespace, name: str) -> Json:
    """Return a Job of the namespace."""
    return space.api.get(space.path("batch/v1", "jobs", name))


def budget_of(space: Namespace) -> int | None:
    """Return ``minAvailable`` of the only PodDisruptionBudget; None without one."""
    found, _ = space.api.items(space.path(*BUDGETS))
    return next((int(item["spec"]["minAvailable"]) for item in found), None)


def create_job(space: Namespace, queue: str, name: str, size: int, **details: Any) -> Json:
    """Create an Indexed Job in the queue whose pods sleep, as `kubectl ddp` labels them."""
    labels = {"ddp.dev/job": name, "ddp.dev/run-id": "r"}
    resources = {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "32Mi"}}
    container = {"name": "pytorch", "image": space.image, "command": ["sleep", "3600"], "resources": resources}
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{**container, "securityContext": RESTRICTED}],
    }
    metadata = {
        "name": name,
        "labels": {**labels, "kueue.x-k8s.io/queue-name": queue, **details.get("labels", {})},
        "annotations": details.get("annotations", {}),
    }
    template = {"metadata": {"labels": {**labels, "ddp.dev/role": "worker"}}, "spec": pod}
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "suspend": True}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {**spec, "template": template}}
    return space.api.create(space.path("batch/v1", "jobs"), body)
