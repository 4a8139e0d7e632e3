"""Plain-HTTP proxy in front of the real API server, with faults that a test injects.

Every request is sent as the user of the kubeconfig, and is recorded. A function of the test chooses the fault of each
request: a made-up response, a connection that ends before or after the API server has handled the request or in the
middle of the response, or the death of the client.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from kubectl_ddp.backends.cluster.http.connection import Connection
from tests.support.api_server import kubeconfig
from tests.support.serving import in_thread

HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "accept-encoding"})


@dataclass(frozen=True)
class Asked:
    """One request."""

    number: int
    """Counts from 1."""
    method: str
    path: str
    query: Mapping[str, str]

    @property
    def is_change(self) -> bool:
        return self.method != "GET"

    @property
    def watches(self) -> bool:
        return "watch" in self.query or "follow" in self.query


@dataclass(frozen=True)
class Fault:
    """Fault of one request; each field is independent of the others."""

    status: int = 0
    """Status of a response that does not come from the API server."""
    body: str | None = None
    """Body of that response; None for a ``Status`` object."""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_dropped: bool = False
    """The connection ends before the API server receives the request."""
    loses_answer: bool = False
    """The API server handles the request, and its response is lost."""
    cut_after: int | None = None
    """Bytes of the response after which the connection ends."""
    cut_in_order: bool = False
    """The truncated response ends like a complete one."""
    then: Callable[[], None] | None = None
    """Called after the API server has responded, before the response is forwarded."""


REASONS = {401: "Unauthorized", 409: "Conflict", 410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}

Decide = Callable[[Asked], Fault | None]


class ApiProxy:
    """Recorded requests, and the faults to inject."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self.asked: list[Asked] = []
        self.answered: dict[int, int] = {}
        """Number of a request → status of the API server's response."""
        self.decide: Decide = lambda _: None
        self.kubeconfig = folder
        self._lock = threading.Lock()
        self._dead = threading.Event()

    def fresh(self, decide: Decide = lambda _: None) -> None:
        """Forget the recorded requests, and inject the faults of ``decide``."""
        with self._lock:
            self.asked, self.answered, self.decide = [], {}, decide
            self._dead = threading.Event()

    def die(self) -> None:
        """Drop every request until :meth:`fresh`."""
        self._dead.set()

    def meet(self, method: str, target: str) -> tuple[Asked, Fault | None]:
        """Record a request, and return its fault."""
        split = urlsplit(target)
        with self._lock:
            query = Asked(len(self.asked) + 1, method, split.path, dict(parse_qsl(split.query)))
            self.asked.append(query)
            if self._dead.is_set():
                return query, Fault(is_dropped=True)
            return query, self.decide(query)

    def pass_on(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> BaseHTTPResponse:
        """Forward a request to the API server."""
        to = self.connection
        saved = {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
        session = to.login.session()
        return session.pool.request(
            method,
            f"{to.server}{target}",
            body=body,
            headers={**saved, **session.headers},
            preload_content=False,
            retries=False,
            timeout=Timeout(connect=10, read=300),
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the client's ACK
    proxy: ApiProxy

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else None
        request, fault = self.proxy.meet(self.command, self.path)
        fault = fault or Fault()
        try:
            if fault.is_dropped:
                self.close_connection = True
            elif fault.status:
                self._reject_unknown_args(request, fault)
            else:
                answer = self.proxy.pass_on(self.command, self.path, dict(self.headers), body)
                self.proxy.answered[request.number] = answer.status
                self._relay(answer, fault)
        except (OSError, HTTPError):
            self.close_connection = True

    def _reject_unknown_args(self, request: Asked, fault: Fault) -> None:
        name = request.path.rpartition("/")[2]
        status = {
            "kind": "Status",
            "status": "Failure",
            "code": fault.status,
            "reason": REASONS.get(fault.status, ""),
            "message": "made up by a test",
            "details": {"name": name, "kind": "things"},
        }
        text = json.dumps(status) if fault.body is None else fault.body
        self.send_response(fault.status)
        for name, value in fault.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def _relay(self, answer: BaseHTTPResponse, fault: Fault) -> None:
        if fault.then is not None:
            fault.then()
        if fault.loses_answer:
            answer.close()
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name in ("Content-Type", "Retry-After"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        left = fault.cut_after
        while chunk := answer.read1(1 << 16):
            part = chunk if left is None else chunk[:left]
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n" if part else b"")
            self.wfile.flush()
            left = None if left is None else left - len(part)
            if left == 0:
                break
        answer.close() if left == 0 else answer.release_conn()
        if left == 0 and not fault.cut_in_order:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Tests read :attr:`ApiProxy.asked` instead."""


@contextlib.contextmanager
def api_proxy(connection: Connection, folder: Path) -> Iterator[ApiProxy]:
    """Start the proxy on a free port, and write a kubeconfig for it to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    proxy = ApiProxy(connection, folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    user: dict[str, Any] = {"token": "a-token-of-nobody"}
    proxy.kubeconfig = kubeconfig(folder, f"http://127.0.0.1:{server.server_address[1]}", user=user, name="proxied")
    with in_thread(server):
        try:
            yield proxy
        finally:
            proxy.die()
