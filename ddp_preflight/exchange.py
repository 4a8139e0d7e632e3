"""Exchange of reports and probes between the nodes: all connect to a host, which distributes them.

::

    client ──▶ host   Request() …         response: the host's time
    client ──▶ host   Request(report)     response: the reports of all, when all are there or time is up
    client ──▶ host   Request(probes)     response: the probes of all, in the same way

:class:`Host` and :class:`HostClient` have the same methods ``reports`` and ``probes``; :func:`connect_to_host` connects
a client. The meeting may be at another address than the endpoint, so that it works if the endpoint's name is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from ddp_preflight import listener, names
from ddp_preflight.schema import Clock, Outcome, Probe, Report, Resolution
from ddp_trainer.common.strict_json import DecodeError
from ddp_trainer.net.addresses import is_address
from ddp_trainer.net.asyncio_utils import hang_up
from ddp_trainer.net.handshake import MOST_BYTES, HandshakeError

PROBE_SECONDS: Final = 15.0
"""Seconds that the host waits for the probes of the nodes that came."""
MAX_NODES_OF_ALL_PROBES: Final = 32
"""Nodes up to which all probes are distributed. Their number grows quadratically, so beyond it only failed ones are."""
FIRST_LINE_BYTES: Final = 1 << 20
"""Longest line of a client whose report the host does not have: without a secret it may be anyone."""
_CLOCK_ROUNDS: Final = 5
_PAUSE: Final = 0.2

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """Request of a client: its report or its probes; without both, for the time."""

    report: Report | None = None
    probes: tuple[Probe, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResponse:
    """Response of the host to a report or to probes."""

    reports: tuple[Report, ...] = ()
    probes: tuple[Probe, ...] = ()


class ExchangeFailed(Exception):
    """The host is unreachable, or is not a preflight."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class _GatherBuffer(Generic[Item]):
    """Items of the nodes by token, until there are enough or time is up."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._items: dict[str, Item] = {}
        self._full = asyncio.Event()

    def add(self, token: str, item: Item) -> None:
        """Add an item, unless the gathering is complete or has one: all nodes must receive the same items."""
        if not self._full.is_set():
            self._items.setdefault(token, item)
            self.expect(self.expected)

    def expect(self, number: int) -> None:
        self.expected = number
        if len(self._items) >= number:
            self._full.set()

    def has(self, token: str) -> bool:
        return token in self._items

    async def all(self, until: float) -> tuple[Item, ...]:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._full.wait()
        self._full.set()  # later items are left out for every node
        return tuple(self._items.values())


class Host:
    """Node at which the others meet."""

    def __init__(self, token: str, expected: int, until: float) -> None:
        """Create the host.

        Args:
            token: Token of this preflight.
            expected: Number of nodes.
            until: Deadline for the last report, in seconds of the event loop's clock.
        """
        self._token = token
        self._until = until
        self._reports: _GatherBuffer[Report] = _GatherBuffer(expected)
        self._probes: _GatherBuffer[tuple[Probe, ...]] = _GatherBuffer(expected)
        self._clients: set[asyncio.Task[None] | None] = set()
        self._lines: dict[str, bytes] = {}

    async def wait_for_clients(self) -> None:
        """Wait until the clients have read their responses and disconnected."""
        if clients := [task for task in self._clients if task]:
            await asyncio.wait(clients, timeout=listener.CONNECT_SECONDS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects. A connection without a request was a probe."""
        token = ""
        try:
            while line := await listener.read_line(
                reader, listener.LINE_BYTES if self._reports.has(token) else FIRST_LINE_BYTES
            ):
                request = listener.decode(PreflightRequest, line)
                if request.report:
                    token = request.report.token
                    self._clients.add(asyncio.current_task())
                    writer.write(self._line("reports", PreflightResponse(reports=await self.reports(request.report))))
                elif request.probes is None:
                    writer.write(listener.encode_banner(self._token))
                elif self._reports.has(token):
                    writer.write(
                        self._line("probes", PreflightResponse(probes=await self.gather_probes(token, request.probes)))
                    )
                await writer.drain()
        except DecodeError:
            return  # the client is not a preflight
        finally:
            self._clients.discard(asyncio.current_task())
            if self._reports.has(token):
                self._probes.add(token, ())  # a client that disconnected is not waited for

    def _line(self, topic: str, response: PreflightResponse) -> bytes:
        """Return the encoded response, cached because it is the same for every client and long for a thousand of
        them.
        """
        if topic not in self._lines:
            self._lines[topic] = listener.encode(response)
        return self._lines[topic]

    async def reports(self, own: Report) -> tuple[Report, ...]:
        """Return the reports of all nodes that came in time."""
        self._reports.add(own.token, own)
        met = await self._reports.all(self._until)
        self._probes.expect(len(met))
        return met

    async def gather_probes(self, token: str, own: tuple[Probe, ...]) -> tuple[Probe, ...]:
        """Return the probes of all nodes that are still connected."""
        self._probes.add(token, own)
        until = asyncio.get_running_loop().time() + PROBE_SECONDS
        everything = [probe for some in await self._probes.all(until) for probe in some]
        if self._probes.expected <= MAX_NODES_OF_ALL_PROBES:
            return tuple(everything)
        return tuple(probe for probe in everything if probe.outcome is not Outcome.OK)


class HostClient:
    """Connection of a node to the host."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, until: float) -> None:
        """Create the client.

        Args:
            reader: Reader of the connection.
            writer: Writer of the connection.
            until: Deadline for the last report, in seconds of the event loop's clock.
        """
        self._reader = reader
        self._writer = writer
        self._until = until

    async def reports(self, own: Report) -> tuple[Report, ...]:
        """Return the reports of all nodes.

        Raises:
            ExchangeFailed: The host disconnected or does not answer.
        """
        own = replace(own, clock=await self._clock())
        response = await self._request(
            PreflightResponse, PreflightRequest(report=own), self._until + _margin(listener.CONNECT_SECONDS)
        )
        return response.reports

    async def gather_probes(self, _token: str, own: tuple[Probe, ...]) -> tuple[Probe, ...]:
        """Return the probes of all nodes.

        Raises:
            ExchangeFailed: The host disconnected or does not answer.
        """
        now = asyncio.get_running_loop().time()
        response = await self._request(PreflightResponse, PreflightRequest(probes=own), now + _margin(PROBE_SECONDS))
        return response.probes

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _clock(self) -> Clock:
        """Measure the clock offset by the quickest of a few round trips, as NTP does."""
        best = Clock(uncertainty=float("inf"))
        for _ in range(_CLOCK_ROUNDS):
            sent, started = time.time(), time.perf_counter()
            until = asyncio.get_running_loop().time() + listener.CONNECT_SECONDS
            banner = await self._request(listener.Banner, PreflightRequest(), until)
            half = (time.perf_counter() - started) / 2
            if half < best.uncertainty:
                best = Clock(offset=round(sent + half - banner.time, 6), uncertainty=round(half, 6))
        return best

    async def _request(self, kind: type[listener.Kind], request: PreflightRequest, until: float) -> listener.Kind:
        """Send a request and return its response. Raises ExchangeFailed."""
        hint = "look at the preflight of the first node; all nodes need the same ddp_trainer"
        try:
            async with asyncio.timeout_at(until):
                self._writer.write(listener.encode(request))
                line = await listener.read_line(self._reader)
            if line:
                return listener.decode(kind, line)
        except OSError as error:
            await hang_up(self._writer)
            raise ExchangeFailed(
                f"the host of the meeting fell silent: {error or 'no answer in time'}", hint
            ) from error
        except DecodeError as error:
            raise ExchangeFailed(f"the meeting host does not run a preflight of this version: {error}", hint) from error
        raise ExchangeFailed("the meeting host closed the connection", hint)


def _margin(seconds: float) -> float:
    """Return ``seconds`` with the time that a busy host may need for its response."""
    return seconds + 2 * listener.CONNECT_SECONDS


async def connect_to_host(host: str, port: int, until: float, key: bytes | None) -> HostClient:
    """Connect to the host by any of its addresses, with retries. Raises ExchangeFailed at ``until``."""
    loop = asyncio.get_running_loop()
    while True:
        found = await loop.run_in_executor(None, names.forward, host)
        tried: list[tuple[str, Outcome]] = []
        for address in found.addresses:
            try:
                return await _connect_client(address, port, until, key)
            except OSError as error:
                tried.append((address, listener.outcome_of(error)))
            except (DecodeError, HandshakeError):
                tried.append((address, Outcome.STRANGER))
        if loop.time() + _PAUSE > until:
            raise _connection_error(found, port, tried)
        await asyncio.sleep(_PAUSE)


async def _connect_client(address: str, port: int, until: float, key: bytes | None) -> HostClient:
    async with asyncio.timeout(listener.CONNECT_SECONDS):
        reader, writer = await asyncio.open_connection(address, port, limit=MOST_BYTES)
        try:
            await listener.read_banner(reader, writer, key)
        except BaseException:
            await hang_up(writer)
            raise
    return HostClient(reader, writer, until)


def _connection_error(found: Resolution, port: int, tried: Sequence[tuple[str, Outcome]]) -> ExchangeFailed:
    by_hosts = f" (/etc/hosts says: {found.hosts_line})" if found.hosts_line else ""
    if not found.addresses:
        return ExchangeFailed(
            f"the name {found.name!r} of the meeting place does not resolve{by_hosts}: {found.error}",
            "mend DNS or /etc/hosts, or name the first node's address with --meet ADDRESS:PORT to see the rest",
        )
    where = ", ".join(f"{address} {outcome}" for address, outcome in tried)
    leads = "" if is_address(found.name) else f"{found.name}{by_hosts} leads to "
    return ExchangeFailed(f"the first node was not met at port {port}: {leads}{where}", _HINTS[tried[0][1]])


_HINTS: Final = {
    Outcome.TIMED_OUT: "a firewall, NetworkPolicy or security group drops the port, or the address is another's",
    Outcome.REFUSED: "start preflight on the first node too; if it runs, a firewall rejects the port or the address is "
    "another's",
    Outcome.NO_ROUTE: "this node has no route to it, or lacks its address family: compare IPv4 and IPv6 of both nodes",
    Outcome.STRANGER: "another program, another version of preflight, or one with another secret listens there; "
    "give all nodes one image and one secret, or choose a free port",
}
