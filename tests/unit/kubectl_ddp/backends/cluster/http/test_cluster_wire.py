"""What comes over the wire: whole answers, and what is left to urllib3."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from kubectl_ddp.backends.cluster.http.http1_client import (
    IncompleteResponse,
    Timeouts,
    TooSlow,
    UnsupportedResponse,
    Wire,
)

PATIENCE = Timeouts(connect=5, read=5)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def saying(*connections: Sequence[bytes]) -> Iterator[tuple[Wire, list[bytes]]]:
    """A server whose n-th connection gives these answers and ends; and what it was asked."""
    heard: list[bytes] = []

    def serve() -> None:
        for answers in connections:
            link, _ = listener.accept()
            with link:
                for answer in answers:
                    heard.append(link.recv(65536))
                    link.sendall(answer)
                if not answers:
                    link.recv(65536)
                    done.wait(10)

    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield Wire(f"http://127.0.0.1:{listener.getsockname()[1]}/base/", None), heard
        finally:
            done.set()
            thread.join(10)


def answer(*headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *headers, "", ""]).encode() + body


CHUNKS = b"3;a=b\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "data"),
    [
        (PLAIN, b"{}"),
        (answer("transfer-encoding: chunked", body=CHUNKS), b"abcde"),
        (answer("Content-Encoding: gzip", "Content-Length: 22", body=gzip.compress(b"{}", mtime=0)), b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
    ids=["with a length", "in chunks", "packed", "of nothing"],
)
def test_an_answer_is_read_whole(said: bytes, data: bytes) -> None:
    with saying([said]) as (wire, _):
        assert wire.get("/api", {"Accept-Encoding": "gzip"}, PATIENCE).data == data


def test_a_request_says_where_to_and_what_it_was_given() -> None:
    with saying([PLAIN]) as (wire, heard):
        wire.get("/api?a=b", {"Accept": "application/json"}, PATIENCE)
    first, host, *rest = heard[0].decode().split("\r\n")
    assert first == "GET /base/api?a=b HTTP/1.1"
    assert host.startswith("Host: 127.0.0.1:")
    assert rest == ["Accept: application/json", "", ""]


def test_headers_are_found_by_any_case_and_all_of_them() -> None:
    with saying([answer("Warning: a", "WARNING: b", "Content-Length: 0")]) as (wire, _):
        found = wire.get("/", {}, PATIENCE)
    assert (found.headers["warning"], found.header("warning"), found.header("retry-after")) == (("a", "b"), "a, b", "")


def test_a_connection_is_used_again() -> None:
    with saying([PLAIN, PLAIN]) as (wire, heard):
        assert [wire.get("/", {}, PATIENCE).status for _ in range(2)] == [200, 200]
    assert len(heard) == 2


@pytest.mark.parametrize("first", [PLAIN, answer("Connection: close", "Content-Length: 0")], ids=["ended", "told so"])
def test_a_connection_that_ended_is_not_used_again(first: bytes) -> None:
    with saying([first], [PLAIN]) as (wire, _):
        wire.get("/", {}, PATIENCE)
        while wire._kept and not _has_ended(wire):
            pass
        assert wire.get("/", {}, PATIENCE).data == b"{}"


def _has_ended(wire: Wire) -> bool:
    wire._kept[0].settimeout(5)
    return wire._kept[0].recv(1, socket.MSG_PEEK) == b""


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        answer(body=b"{}"),
        answer("Content-Length: 2", "Content-Length: 3", body=b"{}"),
        answer("Transfer-Encoding: gzip, chunked", body=CHUNKS),
        answer("Transfer-Encoding: chunked", body=b"zz\r\n"),
        answer("Transfer-Encoding: chunked", body=b"-5\r\n"),
        answer("A: b", " folded", "Content-Length: 0"),
        b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN,
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
    ids=["1.0", "no length", "two lengths", "two codings", "bad chunk", "negative chunk", "folded", "100", "no HTTP"],
)
def test_what_is_not_as_usual_is_left_to_others(said: bytes) -> None:
    with saying([said]) as (wire, _), pytest.raises(UnsupportedResponse):
        wire.get("/", {}, PATIENCE)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", answer("Content-Length: 9", body=b"{}")])
def test_an_answer_that_breaks_off_is_no_answer(said: bytes) -> None:
    with saying([said]) as (wire, _), pytest.raises(IncompleteResponse):
        wire.get("/", {}, PATIENCE)


@pytest.mark.parametrize("patience", [Timeouts(5, 0.05), Timeouts(5, None, 0.05)], ids=["next bytes", "in all"])
def test_an_answer_that_does_not_come_is_given_up(patience: Timeouts) -> None:
    with saying([]) as (wire, _), pytest.raises(TooSlow) as slow:
        wire.get("/", {}, patience)
    assert not slow.value.is_connecting


def test_nothing_is_sent_that_would_be_another_header() -> None:
    wire = Wire("http://127.0.0.1:1", None)
    for target, headers in (("/a b", {}), ("/a\r\nX: y", {}), ("/", {"authorization": "Bearer a\r\nX: y"})):
        with pytest.raises(UnsupportedResponse):
            wire.get(target, headers, PATIENCE)


def test_a_server_that_cannot_be_reached_is_left_to_who_has_the_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(UnsupportedResponse):
        Wire(f"http://127.0.0.1:{port}", None).get("/", {}, PATIENCE)
