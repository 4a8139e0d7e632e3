"""Whole answers to plain reads, over connections that are kept: HTTP/1.1 (RFC 9112) as an API server speaks it.

urllib3 can do all that HTTP has, takes 70 ms to be imported, and a request through it costs twice as much. Reads are
most of what is asked, so they go this way as long as everything is as usual. What is not, a server that cannot be
reached or an answer without a length, raises :class:`Unusual`, and is asked for through urllib3, which can do it or has
the words for why not. Nobody but a reader may use this: a request may reach the API server twice.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import time
import weakref
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

Link = socket.socket | ssl.SSLSocket

MOST_KEPT: Final = 16
"""Connections that wait for the next request; more are asked over by nobody at once."""
MOST_HEAD_BYTES: Final = 1 << 16
CHUNK_BYTES: Final = 1 << 16
PORTS: Final = {"http": 80, "https": 443}
TARGET: Final = re.compile(r"/[!\"$-~]*")
"""What may stand in a request's first line as it is: no space, no control character, no fragment."""
FIELD: Final = re.compile(r"[\t -~]*")
"""What may stand in a header's value."""
FIRST_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5]\d\d)(?: [^\r\n]*)?")


class UnsupportedResponse(Exception):
    """What this module does not understand."""


class IncompleteResponse(Exception):
    """The connection ended before the answer was whole."""


class TooSlow(Exception):
    """No answer in time."""

    def __init__(self, *, is_connecting: bool) -> None:
        super().__init__()
        self.is_connecting = is_connecting


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds to wait, each ``None`` for as long as it takes."""

    connect: float | None
    """Until there is a connection."""
    read: float | None
    """For the next bytes of an answer."""
    total: float | None = None
    """For all of it together."""


@dataclass(frozen=True, slots=True)
class Response:
    """One answer, whole and unpacked."""

    status: int
    headers: Mapping[str, tuple[str, ...]]
    """Name in lower case → every value it came with."""
    data: bytes
    stream: BaseHTTPResponse | None = None
    """What goes on, where that was asked for."""

    def header(self, name: str) -> str:
        """The value of a header, by its name in lower case; empty when it did not come."""
        return ", ".join(self.headers.get(name, ()))


class Wire:
    """Connections to one server, without a proxy on the way."""

    def __init__(self, server: str, context: ssl.SSLContext | None, name: str | None = None) -> None:
        """None is opened yet.

        Args:
            server: its URL.
            context: certificates, for ``https``.
            name: the one in its certificate, where it is not the one in the URL.
        """
        split = urlsplit(server)
        self._address = (_as_it_is(split.hostname or ""), split.port or PORTS[split.scheme])
        self._host = split.netloc.rpartition("@")[2]
        self._prefix = split.path.rstrip("/")
        self._context = context
        self._name = _as_it_is(name or split.hostname or "")
        self._kept: deque[Link] = deque()
        weakref.finalize(self, _close_all, self._kept).atexit = False  # Python's end closes them, too

    def get(self, target: str, headers: Mapping[str, str], patience: Timeouts) -> Response:
        """The answer to a GET of a path below the server's URL. Raises Unusual, Broken and TooSlow."""
        request = self._request(target, headers)
        end = time.monotonic() + patience.total if patience.total is not None else None
        link = self._link(patience, end)
        try:
            reading = _ResponseReader(link, patience.read, end)
            reading.wait()
            link.sendall(request)
            answer, is_kept = reading.read_response()
        except TimeoutError as error:
            link.close()
            raise TooSlow(is_connecting=False) from error
        except OSError as error:
            link.close()
            raise IncompleteResponse from error
        except (ValueError, zlib.error) as error:
            link.close()
            raise UnsupportedResponse from error
        except BaseException:  # Ctrl-C: what is left of the answer must not be taken for the next one
            link.close()
            raise
        if is_kept and len(self._kept) < MOST_KEPT:
            self._kept.append(link)
        else:
            link.close()
        return answer

    def _request(self, target: str, headers: Mapping[str, str]) -> bytes:
        target = f"{self._prefix}{target}"
        if not TARGET.fullmatch(target) or not all(map(FIELD.fullmatch, headers.values())):
            raise UnsupportedResponse
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {self._host}",
            *(f"{name}: {said}" for name, said in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    def _link(self, patience: Timeouts, end: float | None) -> Link:
        with contextlib.suppress(IndexError):
            while True:
                kept = self._kept.pop()  # the one used last: it is the least likely to have been closed meanwhile
                if _is_open(kept):
                    return kept
                kept.close()
        limits = [each for each in (patience.connect, end and end - time.monotonic()) if each is not None]
        try:
            plain = socket.create_connection(
                self._address,  # type: ignore[arg-type]  # getaddrinfo takes bytes, too
                max(0.001, min(limits)) if limits else None,
            )
        except TimeoutError as error:
            raise TooSlow(is_connecting=True) from error
        except OSError as error:
            raise UnsupportedResponse from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return plain if self._context is None else self._context.wrap_socket(plain, server_hostname=self._name)
        except TimeoutError as error:
            plain.close()
            raise TooSlow(is_connecting=True) from error
        except (OSError, ValueError) as error:  # a certificate that is not trusted, among others
            plain.close()
            raise UnsupportedResponse from error


def _as_it_is(host: str) -> str | bytes:
    """A host in ASCII as bytes, which nobody looks through for letters of other scripts: that takes 2 ms to import."""
    return host.encode("ascii") if host.isascii() else host


def _close_all(links: Iterable[Link]) -> None:
    for link in links:
        link.close()


def _is_open(link: Link) -> bool:
    """Whether nothing has come that nobody asked for; the end of a connection is such a thing."""
    try:
        return not select.select([link], [], [], 0)[0]
    except (OSError, ValueError):
        return False


class _ResponseReader:
    """One answer, as it comes. Every method raises OSError, TimeoutError among them, and ValueError."""

    def __init__(self, link: Link, seconds: float | None, end: float | None) -> None:
        self._link = link
        self._seconds = seconds
        self._end = end
        self._buffer = bytearray()

    def wait(self) -> None:
        """Let the next step take as long as it may."""
        if self._end is None:
            self._link.settimeout(self._seconds)
            return
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._link.settimeout(left if self._seconds is None else min(left, self._seconds))

    def read_response(self) -> tuple[Response, bool]:
        """The answer, and whether the connection may be used again."""
        status, headers = self._head()
        data = self._body(status, headers)
        packed = ", ".join(headers.get("content-encoding", ()))
        if packed == "gzip":
            data = zlib.decompress(data, wbits=16 + zlib.MAX_WBITS)
        elif packed not in {"", "identity"}:
            raise ValueError(packed)
        ends = "close" in ", ".join(headers.get("connection", ())).lower()
        return Response(status, headers, data), not ends and not self._buffer

    def _head(self) -> tuple[int, dict[str, tuple[str, ...]]]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MOST_HEAD_BYTES:
                raise ValueError("a head without an end")
            self._more()
        first, *lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        if (found := FIRST_LINE.fullmatch(first)) is None:
            raise ValueError(first)
        return int(found[1]), _fields(lines)

    def _body(self, status: int, headers: Mapping[str, tuple[str, ...]]) -> bytes:
        if coding := headers.get("transfer-encoding"):
            if coding != ("chunked",):
                raise ValueError(coding)
            return b"".join(self._chunks())
        if status in {204, 304}:
            return b""
        lengths = set(headers.get("content-length", ()))
        (length,) = lengths  # none: it ends with the connection, and nobody knows whether that is all
        if not length.isdecimal():
            raise ValueError(length)
        return self._take(int(length))

    def _chunks(self) -> Iterable[bytes]:
        while size := int(self._line().partition(b";")[0].strip(), 16):
            yield self._take(size)
            if self._line():
                raise ValueError("a chunk longer than it said")
        while self._line():  # trailers, of which none says anything to us
            pass

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MOST_HEAD_BYTES:
                raise ValueError("a line without an end")
            self._more()
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _take(self, size: int) -> bytes:
        if size < 0:
            raise ValueError(size)
        while len(self._buffer) < size:
            self._more()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _more(self) -> None:
        self.wait()
        come = self._link.recv(CHUNK_BYTES)
        if not come:
            raise ConnectionResetError
        self._buffer += come


def _fields(lines: Iterable[bytes]) -> dict[str, tuple[str, ...]]:
    fields: dict[str, tuple[str, ...]] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or not name or name != name.strip():  # a folded line among them
            raise ValueError(line)
        known = name.lower()
        fields[known] = (*fields.get(known, ()), value.strip())
    return fields
