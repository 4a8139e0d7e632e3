"""Metrics as the aggregators of pods make them, served where an API server finds them behind a pod's address."""

from __future__ import annotations

import contextlib
import itertools
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.cluster.http.api import Api

RANKS: Final = 8
"""Per pod."""


@dataclass(frozen=True)
class PodMetrics:
    """Address at which all pods answer."""

    address: tuple[str, int]


@contextlib.contextmanager
def pod_metrics(api: Api, *, pods: int) -> Iterator[PodMetrics]:
    """Run a server that answers for one pod after the other: a client that reads all of them gets every rank once."""
    speakers = itertools.cycle([_make_metrics_renderer(RANKS * pod, RANKS * pods) for pod in range(pods)])
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with lock:
                body = next(speakers)(self.path.partition("?")[2])
            head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_: object) -> None:
            """Discard the message."""

    server = ThreadingHTTPServer((_local_address(api), 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield PodMetrics((str(server.server_address[0]), int(server.server_address[1])))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _local_address(api: Api) -> str:
    """Our own address on the way to a node: an API server asks no pod at a loopback address."""
    nodes, _ = api.items("/api/v1/nodes", labelSelector="type!=kwok")
    addresses = [address for node in nodes for address in node["status"].get("addresses") or ()]
    node = next(address["address"] for address in addresses if address["type"] == "InternalIP")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((node, 9))
        return str(probe.getsockname()[0])


def _make_metrics_renderer(first: int, world: int) -> Callable[[str], bytes]:
    """Return a function that renders the aggregator's answer for eight training ranks, once per query."""
    from prometheus_client import generate_latest

    from ddp_trainer.common.constants import GroupState
    from ddp_trainer.common.time_classes import Phase
    from ddp_trainer.metrics import attach
    from ddp_trainer.metrics.serve.collector import Exposition
    from ddp_trainer.metrics.serve.server import Selection, families_in
    from ddp_trainer.process.recorder import RendezvousResult

    with tempfile.TemporaryDirectory() as folder:
        agent = attach.agent_recorder(Path(folder), {})
        agent.state(GroupState.RUNNING)
        nodes = world // RANKS
        agent.rendezvous_completed(RendezvousResult(1.5, 1, size=world, nodes=nodes, nodes_desired=nodes))
        for local in range(RANKS):
            render_metrics = {"RANK": str(first + local), "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(RANKS)}
            recorder = attach.rank_recorder({"DDP_METRICS_DIR": folder, **render_metrics})
            recorder.identity(rank=first + local, local_rank=local, world_size=world, backend="gloo", device="cpu")
            recorder.put(Metric.STEPS_PLANNED, 100)
            recorder.step(1, 0, 16, *[0.25] * len(Phase))
            recorder.progress(0.5, 0.1)
        families = list(Exposition(Path(folder), "job").collect())

    @cache
    def render_metrics(query: str) -> bytes:
        return bytes(generate_latest(Selection(families, families_in(query))))

    return render_metrics
