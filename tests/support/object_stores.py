"""Real S3 servers of ``make stores``, and a proxy before them that fails.

Swift is OpenStack's object store, whose S3 interface has conditional writes (``If-None-Match``). rclone serves a
directory by S3 and ignores the condition, as other small servers do. Both start within seconds, without root.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.serving import in_thread

BIN: Final = Path(__file__).parents[2] / "build/stores/bin"
BUCKET: Final = "bucket"
_START_SECONDS: Final = 60
_STARTED: Final = re.compile(r"Starting s3 server on \[(http://[^/\]]+)/?\]")
"""Message of rclone once it listens."""


@dataclass(frozen=True)
class Store:
    """A server that runs."""

    endpoint: str
    key: str
    secret: str

    @property
    def environ(self) -> dict[str, str]:
        """Variables with which the clients of S3 find the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def behind(self, proxy: FaultProxy) -> Store:
        """The same server, through a proxy."""
        return Store(proxy.endpoint, self.key, self.secret)


def skip_without_stores() -> None:
    """Skip the test where the servers or the client are not installed."""
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    if not (BIN / "rclone").exists() or not (BIN / "swift-proxy-server").exists():
        pytest.skip("the S3 servers are not installed: make stores")


@contextmanager
def swift(directory: Path) -> Iterator[Store]:
    """Run Swift, with the bucket."""
    port_file = directory / "port"
    command = [str(BIN / "python"), "-W", "ignore", "-m", "tests.support.swift_server", str(directory), str(port_file)]
    with _run(command, directory / "log") as process:
        _wait_for(process, port_file.exists, directory / "log")
        store = Store(f"http://127.0.0.1:{port_file.read_text()}", "test:tester", "testing")
        make_bucket(store)
        yield store


@contextmanager
def rclone(directory: Path) -> Iterator[Store]:
    """Run rclone's server, with the bucket. It has no conditional writes."""
    (directory / "files" / BUCKET).mkdir(parents=True, exist_ok=True)
    key, secret, log = "rclone-tester", "rclone-testing", directory / "log"
    options = ["--config", "", "--auth-key", f"{key},{secret}", "--addr", "127.0.0.1:0"]
    command = [str(BIN / "rclone"), "serve", "s3", *options, str(directory / "files")]
    with _run(command, log) as process:
        _wait_for(process, lambda: _STARTED.search(log.read_text()) is not None, log)
        (endpoint,) = _STARTED.findall(log.read_text())
        yield Store(endpoint, key, secret)


def make_bucket(store: Store, name: str = BUCKET) -> None:
    """Make a bucket, by the client."""
    import s3fs

    filesystem = s3fs.S3FileSystem(
        key=store.key, secret=store.secret, endpoint_url=store.endpoint, skip_instance_cache=True,
        client_kwargs={"region_name": "us-east-1"},
    )  # fmt: skip
    filesystem.mkdir(name)


@contextmanager
def _run(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    log.parent.mkdir(parents=True, exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        log.open("wb") as stream,
        subprocess.Popen(command, stdout=stream, stderr=stream, cwd=Path(__file__).parents[2], env=environ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while not is_ready():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{process.args!r} did not start: {log.read_text()[-2000:]}")
        time.sleep(0.02)


class Fault(Enum):
    """Behaviour of the proxy on a request."""

    UNAVAILABLE = auto()
    """Answers 503 SlowDown."""
    CUT_REQUEST = auto()
    """Closes the connection in the middle of the request's body."""
    LOST_ANSWER = auto()
    """Lets the request take effect, and closes the connection without an answer."""
    HALF_BODY = auto()
    """Answers 200 with the first half of the body, and a Content-Length that agrees."""


@dataclass
class FaultProxy:
    """HTTP proxy of one server. ``decide(method, path)`` returns the fault of a request, or None."""

    endpoint: str
    decide: Callable[[str, str], Fault | None] = lambda _method, _path: None
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of all requests so far."""

    def fail(self, fault: Fault, *, method: str, part: str = "", times: int = 1 << 30) -> None:
        """Fail the next requests with this method whose path contains ``part``."""
        left = iter(range(times))

        def decide(request: str, path: str) -> Fault | None:
            return fault if request == method and part in path and next(left, None) is not None else None

        self.decide = decide


@contextmanager
def fault_proxy(store: Store) -> Iterator[FaultProxy]:
    """Run a proxy of a server."""
    host = store.endpoint.removeprefix("http://")

    class Handler(_Handler):
        target = host

    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        server.proxy = proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")  # type: ignore[attr-defined]
        yield proxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target = ""

    def _handle(self) -> None:
        proxy: FaultProxy = self.server.proxy  # type: ignore[attr-defined]
        proxy.requests.append((self.command, self.path))
        fault = proxy.decide(self.command, self.path)
        length = int(self.headers.get("Content-Length", 0))
        if fault is Fault.CUT_REQUEST:
            self.rfile.read(length // 2)
            self._hang_up()
            return
        body = self.rfile.read(length)
        if fault is Fault.UNAVAILABLE:
            self._refuse()
            return
        connection = HTTPConnection(self.target, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            self._pass_on(fault, answer, answer.read())
        finally:
            connection.close()

    def _pass_on(self, fault: Fault | None, answer: Any, content: bytes) -> None:
        if fault is Fault.LOST_ANSWER:
            self._hang_up()
            return
        if fault is Fault.HALF_BODY:
            content = content[: len(content) // 2]
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", answer.getheader("Content-Length", "0") if is_head else str(len(content)))
        self.end_headers()
        self.wfile.write(b"" if is_head else content)

    def _refuse(self) -> None:
        content = b"<Error><Code>SlowDown</Code><Message>by the test</Message></Error>"
        self.send_response_only(503)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        pass
