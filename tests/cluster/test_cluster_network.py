"""Network access to and from the pods of a job, on a cluster that enforces network policies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.drivers.node_access import ANSWER
from ddp_trainer.common.constants import Port, Role
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import DdpError
from tests.cluster.cluster_prometheus import ClusterPrometheus
from tests.cluster.knocking import knock
from tests.cluster.live_cluster import RESTRICTED, Namespace, namespace, until
from tests.support.helm import CHARTS, Helm

SLEEP = ("--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi", "--command", "sleep 3600")
DOORS = (53, 5353, 8000)
"""Ports outside the job. The first two are those at which a DNS server may be reached."""
DNS = ("kube-dns.kube-system.svc", 53)
LISTENER = f"""\
import signal
import socket

listeners = [socket.create_server(("", port)) for port in {DOORS}]
signal.pause()
"""
CLOSED = """\
import socket
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
def opens(host, port):
    [*_, (*_, address)] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # DNS still works
    try:
        socket.create_connection(address[:2], 2).close()
    except OSError:
        return False
    return True
end = time.monotonic() + 60  # policies apply a moment after a pod starts
while (reached := [name for name, door in DOORS.items() if opens(*door)]) and time.monotonic() < end:
    time.sleep(0.5)
print(f"world size {dist.get_world_size()} after 5 steps, reached {reached}", flush=True)
dist.destroy_process_group()
"""
"""Script that trains with its peers, then tries to connect to :data:`DOORS`."""


@pytest.fixture
def watchers(api: Api, image: str, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace whose pods a job allows to read metrics."""
    with namespace(api, image, tmp_path) as made:
        yield made


def running(space: Namespace, job: str) -> dict[str, str]:
    """Return the addresses of the store and the worker of a one-node job, once both run."""

    def found() -> dict[str, str]:
        pods = [(role, pod) for role in (Role.STORE, Role.WORKER) for pod in space.pods(role)]
        own = [(role, pod) for role, pod in pods if pod["metadata"]["name"].startswith(job)]
        return {role: pod["status"].get("podIP", "") for role, pod in own if pod["status"]["phase"] == "Running"}

    until("store and worker running", lambda: len(found()) == 2 and all(found().values()))
    return found()


def test_another_job_reaches_nothing_of_a_job_and_a_reader_its_metrics_alone(
    space: Namespace, watchers: Namespace
) -> None:
    submit = ("submit", "--image", space.image, "--nnodes", "1")
    space.ddp(*submit, "--name", "nap", "--metrics-from", watchers.name, *SLEEP).ok()
    at = running(space, "nap")
    doors = {"store": (at[Role.STORE], int(Port.RENDEZVOUS)), "metrics": (at[Role.WORKER], int(Port.METRICS))}
    # The API server, which proxies `status` and `top`, is outside the pods' network.
    until("the size of its world, which the launcher tells once its group has formed", lambda: world_size(space))

    assert knock(watchers, "reader", doors, to_open=["metrics"]) == {"store": False, "metrics": True}
    assert knock(space, "stranger", doors) == {"store": False, "metrics": False}


def test_the_clusters_prometheus_scrapes_a_job(space: Namespace, prometheus: ClusterPrometheus) -> None:
    space.ddp("submit", "--image", space.image, "--nnodes", "1", "--name", "nap", *SLEEP).ok()

    asked = f'{Metric.WORLD_SIZE}{{namespace="{space.name}"}}'
    [series] = until("a scrape", lambda: prometheus.query(asked))
    assert (series["metric"]["ddp_job"], series["value"][1]) == ("nap", "1")


def world_size(space: Namespace) -> bool:
    return Metric.WORLD_SIZE in (metrics(space) or "")


def metrics(space: Namespace) -> str | None:
    """Return the metrics of the first pod through the API server; None while the port is closed."""
    pod = space.path("v1", "pods", space.pods()[0]["metadata"]["name"])
    with contextlib.suppress(DdpError):
        return space.api.text(f"{pod}:{Port.METRICS}/proxy/metrics", limits=ANSWER)
    return None


def listener(space: Namespace) -> str:
    """Start a pod that listens at :data:`DOORS`, and return its address."""
    container = {
        "name": "world",
        "image": space.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", LISTENER],
        "readinessProbe": {"tcpSocket": {"port": DOORS[-1]}, "periodSeconds": 1},
        "securityContext": RESTRICTED,
    }
    space.api.create(space.path("v1", "pods"), {"metadata": {"name": "world"}, "spec": {"containers": [container]}})
    path = space.path("v1", "pods", "world")

    def listens() -> str | None:
        status = space.api.get(path)["status"]
        is_ready = any(container_status["ready"] for container_status in status.get("containerStatuses") or ())
        return str(status["podIP"]) if is_ready else None

    return until("a pod that listens", listens)


def test_a_job_trains_while_egress_is_closed_and_reaches_nothing_but_itself(
    space: Namespace, watchers: Namespace, helm: Helm, tmp_path: Path
) -> None:
    """The platform closes egress of the namespace, and the job closes its own."""
    values = {"networkPolicy": {"egress": "closed"}, "namespaces": [{"name": space.name, "create": False}]}
    [closed] = [item for item in helm.template(CHARTS / "ddp-platform", values) if is_default_policy(item)]
    space.api.create(space.path("networking.k8s.io/v1", "networkpolicies"), closed)
    world = listener(watchers)
    doors = {f"world:{port}": (world, port) for port in DOORS} | {"api": ("kubernetes.default.svc", 443)}
    assert knock(watchers, "free", doors, to_open=list(doors)) == dict.fromkeys(doors, True)

    script = tmp_path / "train.py"
    script.write_text(CLOSED.replace("DOORS", repr(doors)))
    size = ("--nnodes", "2", "--nproc", "1", "--cpu", "250m", "--memory", "768Mi", "--shm", "64Mi", "--engine", "job")
    words = ("--name", "shut", "--image", space.image, *size, "--egress", "closed", "--wait", "--timeout", "150s")
    space.ddp("submit", str(script), *words).ok()
    result = space.ddp("logs", "shut", "--rank", "all").ok().out
    assert result.count("world size 2 after 5 steps, reached []") == 2, result

    found = knock(space, "shut-in", {**doors, "dns": DNS}, to_open=["dns"])
    assert found == {**dict.fromkeys(doors, False), "dns": True}


def is_default_policy(item: dict[str, Any]) -> bool:
    return bool(item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == "ddp-default")
