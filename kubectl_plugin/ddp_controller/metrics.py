"""Metrics and health of the controller over HTTP: ``/metrics``, ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app

from ddp_trainer.common.listener import listen

STUCK_SECONDS: Final = 60.0
"""Time without a pass of the loop after which ``/healthz`` fails."""


class ControllerMetrics:
    """Metrics of one controller."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "ddp_controller_decisions", "Decisions carried out", ["action"], registry=self.registry
        )
        self.refusals = Counter(
            "ddp_controller_refusals", "Decisions that the API server refused", ["action"], registry=self.registry
        )
        self.is_leader = Gauge("ddp_controller_leader", "1 if this process decides", registry=self.registry)
        self.jobs = Gauge("ddp_controller_jobs", "Jobs that are watched", registry=self.registry)
        self.pods_to_move = Gauge("ddp_controller_pods_to_move", "Pods on nodes that will go", registry=self.registry)
        self.waiting = Gauge("ddp_controller_waiting_workloads", "Workloads without quota", registry=self.registry)
        self.last_pass: float | None = None
        """Time of the last pass of the loop; None before the first."""

    def pass_done(self) -> None:
        """Record a pass of the loop."""
        self.last_pass = time.monotonic()

    def serve(self, port: int) -> Callable[[], None]:
        """Serve in a thread. Returns the function that ends it."""
        pages = make_wsgi_app(self.registry)

        def app(environ: dict[str, Any], respond: Callable[..., Any]) -> Any:
            page = environ.get("PATH_INFO")
            if page == "/metrics":
                return pages(environ, respond)
            late = self.last_pass is None or time.monotonic() - self.last_pass > STUCK_SECONDS
            is_well = not late if page == "/readyz" else self.last_pass is None or not late
            respond("200 OK" if is_well else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"ok\n" if is_well else b"the loop has not run\n"]

        server = make_server("", port, app, server_class=_Server, handler_class=_Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def end() -> None:
            server.shutdown()
            server.server_close()

        return end


class _Server(WSGIServer):
    """Server on all addresses, of IPv6 and of IPv4. That of the standard library has only IPv4."""

    def server_bind(self) -> None:
        self.socket.close()
        self.server_name, self.server_port = "", self.server_address[1]
        self.socket = listen("", self.server_port)
        self.setup_environ()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """Write no line per request."""
