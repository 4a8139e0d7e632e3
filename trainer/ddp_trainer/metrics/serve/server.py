"""HTTP server of metrics: name filter, hang reports of the ranks, the last scrape before the end, and files that cannot
be read.

A connection carries one request and has :data:`DEADLINE_SECONDS` from accept to the last byte, which cuts off slow
senders and slow readers. There are at most :data:`MOST_CONNECTIONS`, and :data:`MOST_PER_ADDRESS` from one address. A
further connection closes the oldest. Idle clients therefore do not block Prometheus, which sends its request
immediately. One thread serves all connections.

:class:`HangProxy` reads the outline from the launcher's socket in the metrics directory.

Prometheus' client libraries use the same query. A list of many jobs reads half of a pod's families this way.

Without a scrape after its end, Prometheus misses the progress of a pod since the previous scrape. A waiting pod holds
its GPUs. :class:`ScrapeTracker` therefore waits only if Prometheus has scraped regularly, only until its next scrape,
and only for a limited time.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from prometheus_client.metrics_core import Metric as Exposed
from prometheus_client.registry import Collector

from ddp_trainer.common.constants import FAMILY_QUERY, Env
from ddp_trainer.metrics.storage.mmap_directory import read_pod_snapshot
from ddp_trainer.metrics.storage.mmap_store import OtherVersion
from ddp_trainer.net.limited_server import Connection, ConnectionLimits, LimitedServer, RateLimitedLog, apply_fd_limit
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.socket_address import short_address

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


ANSWER_SECONDS: Final = 4.5
"""Timeout in seconds, slightly shorter than that of a connection."""
MOST_BYTES: Final = 1 << 22


class HangProxy:
    """Relay that has at most one request to the launcher open, shared by all clients.

    The launcher limits how often it inspects its ranks.
    """

    def __init__(self, directory: Path) -> None:
        """Create the relay.

        Args:
            directory: Directory of the launcher's socket.
        """
        self._directory = directory
        self._asking: asyncio.Task[Response] | None = None

    async def fetch_response(self) -> Response:
        """Return the launcher's outline, or the reason why there is none."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(hang(self._directory))
        return await asyncio.shield(self._asking)  # a client that disconnects must not cancel it for others


async def hang(directory: Path) -> Response:
    """Return the response of the launcher's socket in ``directory``, or the reason why there is none."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            body = await _all_of(directory)
    except TimeoutError:
        return error_response(HTTPStatus.GATEWAY_TIMEOUT, "The launcher does not answer: is it stopped?")
    except OSError as error:
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, f"No launcher shows its ranks here: {error.strerror}.")
    if not body:
        return error_response(HTTPStatus.SERVICE_UNAVAILABLE, "The launcher is about to end, and shows no ranks.")
    return Response(body, content_type="application/json")


async def _all_of(directory: Path) -> bytes:
    with short_address(directory / heartbeat_page.LAUNCHER) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(heartbeat_page.OUTLINE)
        answer = b""
        while len(answer) < MOST_BYTES and (part := await reader.read(1 << 16)):
            answer += part
        return answer
    finally:
        writer.close()


MOST_FIELDS: Final = 128
"""Most fields in a query: parsing more would cost more than the page."""


def families_in(query: str) -> frozenset[str]:
    """Return the family names in a query string; empty for all families.

    Raises:
        ValueError: The query has more than :data:`MOST_FIELDS` fields.

    >>> sorted(families_in("name[]=ddp_step&name%5B%5D=ddp_loss&debug=1")), families_in("")
    (['ddp_loss', 'ddp_step'], frozenset())
    """
    return frozenset(parse_qs(query, max_num_fields=MOST_FIELDS).get(FAMILY_QUERY, ()))


@dataclass(frozen=True, slots=True)
class Selection(Collector):
    """Families that were collected before, selected by names of families or of single samples."""

    families: Sequence[Exposed]
    names: Collection[str]
    """Names to select; empty for all families."""

    def collect(self) -> Iterator[Exposed]:
        """Yield the selected families. An unknown name selects nothing."""
        if not self.names:
            yield from self.families
            return
        for family in self.families:
            samples = [sample for sample in family.samples if sample.name in self.names or family.name in self.names]
            if samples:
                chosen = Exposed(family.name, family.documentation, family.type, family.unit)
                chosen.samples = samples
                yield chosen


MOST_SECONDS: Final = 20.0
SCRAPER: Final = "Prometheus/"
"""Prefix of Prometheus' user agent. Requests of other clients do not count."""
TIMES: Final = 2.0
"""Longest time after the last scrape, in scrape intervals. After it, no further scrape is expected."""
SENT_SECONDS: Final = 0.5
"""Seconds for a response to leave."""


class ScrapeTracker:
    """Times of Prometheus' scrapes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval: float | None = None
        self._last: float | None = None
        self._over: float | None = None
        self._deadline = 0.0

    def record_request(self, agent: str) -> None:
        """Record a request for the metrics.

        Args:
            agent: User agent of the client.
        """
        if not agent.startswith(SCRAPER):
            return
        now = self._clock()
        if self._last is not None:
            self._interval = now - self._last
        self._last = now

    def over(self, most: float) -> None:
        """Record the end of the run, and wait for one more scrape for at most ``most`` seconds."""
        self._over = self._clock()
        if self._interval is None or self._last is None:
            self._deadline = self._over
        else:
            self._deadline = min(self._over + most, self._last + TIMES * self._interval + SENT_SECONDS)

    @property
    def is_done(self) -> bool:
        """True if the run is over and there is nothing to wait for: the last scrape came, or it is overdue."""
        if self._over is None:
            return False
        now = self._clock()
        has_come = self._last is not None and self._last >= self._over and now - self._last >= SENT_SECONDS
        return has_come or now >= self._deadline


def max_wait_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds in ``$DDP_LAST_SCRAPE``; 20 if it is unset or not a number from 0 to 600."""
    try:
        seconds = float(environ.get(Env.LAST_SCRAPE, ""))
    except ValueError:
        return MOST_SECONDS
    return seconds if 0 <= seconds <= 600 else MOST_SECONDS


CHECK_INTERVAL_SECONDS: Final = 1.0


@dataclass(slots=True)
class UnreadableFiles:
    """Log of the unreadable metrics files of one directory."""

    directory: Path
    report: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _checked_at: float = float("-inf")
    _reported: set[tuple[Path, str]] = field(default_factory=set)

    def check_if_due(self) -> None:
        """Check the metrics files if a check is due, and report new unreadable ones."""
        if self.clock() - self._checked_at < CHECK_INTERVAL_SECONDS:
            return
        self._checked_at = self.clock()
        for path, why in read_pod_snapshot(self.directory).stale:
            if (path, str(why)) not in self._reported:
                self._reported.add((path, str(why)))
                self.report(f"{path} is left out, as ddp_exporter_stale_boards counts: {_reason(why)}.")


def _reason(why: Exception) -> str:
    if isinstance(why, OtherVersion):
        own = importlib.metadata.version("kubectl-ddp")
        return f"another version of kubectl-ddp has written it than {own}, which reads it; install one for both"
    return f"it is damaged ({str(why).removesuffix('.')}), until its process is started again"
