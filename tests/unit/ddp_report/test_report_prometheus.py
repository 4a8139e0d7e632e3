"""A Prometheus that does not answer, answers slowly or not in full, by real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from ddp_report import prometheus
from ddp_report.prometheus import TimeRange, query_series
from kubectl_ddp.errors import Unreachable

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"


def closes(connection: socket.socket, _: threading.Event) -> None:
    connection.recv(4096)


def is_silent(_: socket.socket, over: threading.Event) -> None:
    over.wait()


def dribbles(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(4096)
    connection.sendall(HEAD)
    while not over.wait(0.02):
        connection.sendall(b" ")


def stops_half_way(connection: socket.socket, _: threading.Event) -> None:
    connection.recv(4096)
    connection.sendall(HEAD + b"{")


@contextlib.contextmanager
def listener(behave: Callable[[socket.socket, threading.Event], None]) -> Iterator[str]:
    """The URL of something that accepts connections, and then does ``behave``."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            behave(connection, over)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("behave", "sentence"),
    [
        (closes, "does not answer: Remote end closed connection without response"),
        (is_silent, "does not answer: timed out"),
        (dribbles, "does not answer: after 0.5 s its answer is not complete"),
        (stops_half_way, "is not Prometheus: the response is not JSON"),
    ],
)
def test_whoever_does_not_answer_in_time_is_named_with_the_way_out(
    behave: Callable[[socket.socket, threading.Event], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PATIENCE_SECONDS", 0.5)
    with listener(behave) as url, pytest.raises(Unreachable) as report:
        query_series(url, "digits", None, TimeRange(start=0.0, end=60.0), {})
    assert f"{url} {sentence}" in report.value.message
    assert report.value.hint


def test_a_name_that_nobody_knows_is_named() -> None:
    with pytest.raises(Unreachable, match=r"Prometheus at http://no\.such\.host\.invalid:9090 does not answer: "):
        query_series("http://no.such.host.invalid:9090", "digits", None, TimeRange(start=0.0, end=60.0), {})
