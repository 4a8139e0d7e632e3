"""HTTP server with limits against slow and excessive clients.

A connection carries one request and has :data:`DEADLINE_SECONDS` from accept to the last byte, which cuts off slow
senders and slow readers. There are at most :data:`MOST_CONNECTIONS`, and :data:`MOST_PER_ADDRESS` from one address. A
further connection closes the oldest. Idle clients therefore do not block Prometheus, which sends its request
immediately. One thread serves all connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ddp_trainer.net.connection_limits import ConnectionLimits, RateLimitedLog, apply_fd_limit
from ddp_trainer.net.limited_server import Connection, LimitedServer

DEADLINE_SECONDS: Final = 5.0
MOST_CONNECTIONS: Final = 64
MOST_PER_ADDRESS: Final = 32
"""Connections of one IPv4 address or one IPv6 /64 network; every pod of a node may be in the same one."""
MOST_REQUEST_BYTES: Final = 8192
LINES_PER_MINUTE: Final = 6
PLAIN: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Fields of an HTTP request that the server uses."""

    method: str
    path: str
    """Path without the query."""
    accept: str
    agent: str = ""
    """Value of the header ``User-Agent``."""
    query: str = ""
    """Raw text after the question mark."""


@dataclass(frozen=True, slots=True)
class Response:
    """HTTP response."""

    body: bytes
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = PLAIN

    def encoded(self, *, with_body: bool = True) -> bytes:
        """Return the response as sent over the wire."""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if with_body else b"")


def error_response(status: HTTPStatus, sentence: str) -> Response:
    """Return an error response with one sentence."""
    return Response(f"{sentence}\n".encode(), status)


def parse(head: bytes) -> HttpRequest | None:
    r"""Parse the request in ``head``; None if it is not HTTP/1.

    >>> parse(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nACCEPT: text/plain\r\n\r\n")
    HttpRequest(method='GET', path='/metrics', accept='text/plain', agent='', query='x=1')
    """
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    # The first of duplicate headers wins.
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in reversed(rest))}
    path, _, query = words[1].partition("?")
    return HttpRequest(words[0], path, headers.get("accept", ""), headers.get("user-agent", ""), query)


Respond = Callable[[HttpRequest], Response | Awaitable[Response]]
"""Returns the response to a request, immediately or as an awaitable."""


class Server:
    """Server that answers one request per connection with the result of ``respond``."""

    def __init__(
        self, respond: Respond, write: Callable[[str], None], *, deadline_seconds: float = DEADLINE_SECONDS
    ) -> None:
        """Create the server without starting it.

        Args:
            respond: Returns the response to a request.
            write: Takes lines about connections that failed, at most :data:`LINES_PER_MINUTE`.
            deadline_seconds: Most seconds from accept to the last byte.
        """
        self._respond = respond
        self._log = RateLimitedLog(lines_per_minute=LINES_PER_MINUTE, write=write)
        self._deadline_seconds = deadline_seconds

    def start(self, listener: socket.socket) -> LimitedServer:
        """Accept connections from ``listener`` until the returned server is closed."""
        total = apply_fd_limit(MOST_CONNECTIONS)
        limits = ConnectionLimits(total=total, per_address=min(total, MOST_PER_ADDRESS))
        server = LimitedServer(listener, self._serve, limits=limits, log=self._log, buffer_bytes=MOST_REQUEST_BYTES)
        server.start()
        return server

    async def _serve(self, connection: Connection) -> None:
        # 0: drain waits until the last byte has left, so the deadline also covers slow readers.
        connection.writer.transport.set_write_buffer_limits(0)
        async with asyncio.timeout(self._deadline_seconds):
            connection.writer.write(await self._process_request(connection.reader))
            await connection.writer.drain()

    async def _process_request(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = parse(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.LimitOverrunError:
            sentence = f"A request has at most {MOST_REQUEST_BYTES} bytes here."
            return error_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, sentence).encoded()
        if request is None:
            return error_response(HTTPStatus.BAD_REQUEST, "This is not an HTTP/1 request.").encoded()
        if request.method not in {"GET", "HEAD"}:
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are answered here.").encoded()
        answer = self._respond(request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return answer.encoded(with_body=request.method == "GET")
