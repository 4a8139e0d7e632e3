"""Answers of hostile pods: texts that seeded mutations make of honest ones, and answers that misuse HTTP."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from tests.support.api_server import Answer

MIB: Final = 1 << 20

HONEST: Final = (
    b'ddp_step{rank="0"} 7\nddp_step{rank="1"} 7\nddp_worker_group_state{state="running"} 1\n',
    b'ddp_loss{rank="0",pod="a\\"b"} 2.5e-3\n# HELP ddp_loss Loss.\nprocess_open_fds 3\n',
    b'{"version": 1, "times": [1, 2], "series": [{"name": "a", "values": [1, null], "labels": {"rank": "0"}}]}',
    b'{"version": 1, "generation": 1, "on_hang": "report", "ranks": [], "findings": [], "ras": ""}',
    b"2026-01-02T03:04:05Z [rank 0] step 7\n2026-01-02T03:04:06Z Traceback (most recent call last):\n",
)
PIECES: Final = (
    *(
        b"{",
        b"}",
        b'"',
        b"\\",
        b",",
        b"=",
        b"\n",
        b"\r\n",
        b"\0",
        b" ",
        b"\x1b]52;c;",
        b"\xff\xfe",
        b"\xf0\x9f\x92\xa9",
    ),
    *(b"ddp_step{", b'a="', b"NaN", b"1e400", b"-Infinity", b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"a," * 500),
)


def mutations(seed: int) -> Iterator[bytes]:
    """Endless hostile bodies: honest ones with pieces repeated, removed and put in, up to some kilobytes."""
    choose = random.Random(seed)
    while True:
        body = choose.choice(HONEST)
        for _ in range(choose.randint(1, 4)):
            at, end = sorted(choose.choices(range(len(body) + 1), k=2))
            part = choose.choice((choose.choice(PIECES), body[at:end] * choose.randint(0, 3)))
            body = (body[:at] + part + body[choose.choice((at, end)) :])[: 16 << 10]
        yield body


def _endless(head: str, piece: bytes, *, pause: float = 0.0, chunked: bool = False, mib: int = 1024) -> Iterator[bytes]:
    """The head, then ``mib`` MiB in pieces."""
    yield f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode()
    frame = b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece
    for _ in itertools.repeat(None, mib * MIB // len(piece)):
        yield frame
        time.sleep(pause)


_CHUNKED: Final = "Transfer-Encoding: chunked"
_GIB: Final = f"Content-Length: {1 << 30}"

HOSTILE: Final[Mapping[str, Callable[[], Iterator[bytes]]]] = {
    "a gibibyte": lambda: _endless(_GIB, b"x" * MIB),
    "a gibibyte in chunks": lambda: _endless(_CHUNKED, b"x" * MIB, chunked=True),
    "a gibibyte of empty lines": lambda: _endless(_GIB, b"\n" * MIB),
    "chunks of a byte": lambda: _endless(_CHUNKED, b"1\r\nx\r\n" * 100_000, mib=64),
    "drops": lambda: _endless(_CHUNKED, b"x", pause=0.05, chunked=True),
    "a bomb": lambda: iter([_whole(gzip.compress(bytes(64 * MIB)), "Content-Encoding: gzip")]),
    "another coding": lambda: iter([_whole(b"x", "Content-Encoding: br")]),
    "a negative chunk": lambda: iter([f"HTTP/1.1 200 OK\r\n{_CHUNKED}\r\n\r\n-5\r\nabc\r\n".encode()]),
    "a chunk without a number": lambda: iter([f"HTTP/1.1 200 OK\r\n{_CHUNKED}\r\n\r\nzz\r\n".encode()]),
    "a large error": lambda: iter([b"HTTP/1.1 500 No\r\n" + _GIB.encode() + b"\r\n\r\n", *[b"x" * MIB] * 64]),
}
"""Name → bytes of an answer over HTTP."""


def _whole(body: bytes, *headers: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""]).encode() + body


def hostile(name: str) -> Answer:
    """The answer of this name for :class:`~tests.support.api_server.ApiServer`."""
    return Answer(200, raw=HOSTILE[name])
