"""Listener of a preflight, and the probe whether other nodes reach its ports.

A peer authenticates by :mod:`ddp_trainer.net.handshake`, then receives a :class:`Banner` with this node's token and
time. The connection may continue to the :class:`~ddp_preflight.exchange.Host`. Without a secret, the banner
comes first.

:func:`probe` runs all probes of a node.

Messages are frozen dataclasses as JSON, one per line, with exact types and a length limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import re
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ddp_preflight.schema import VERSION, Outcome, Probe, ProbeKind, Report
from ddp_trainer.common import strict_json
from ddp_trainer.common.strict_json import DecodeError
from ddp_trainer.net.addresses import is_loopback
from ddp_trainer.net.asyncio_utils import hang_up
from ddp_trainer.net.handshake import MOST_BYTES, HandshakeError, authenticate, authenticate_client
from ddp_trainer.net.limited_server import Connection, ConnectionLimits, LimitedServer, RateLimitedLog, apply_fd_limit

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LINE_BYTES: Final = 1 << 25
"""Longest line after the handshake in bytes, enough for the reports of a thousand nodes."""
HANDSHAKE_VERSION: Final = 2
KEY_PURPOSE: Final = "preflight"
"""Purpose of the authentication key of preflights, see :meth:`ddp_trainer.net.run_secret.RunSecret.key`."""

Kind = TypeVar("Kind", bound="DataclassInstance")


def encode(message: DataclassInstance) -> bytes:
    """Return the message as one line."""
    return json.dumps(asdict(message), separators=(",", ":")).encode() + b"\n"


def decode(kind: type[Kind], line: bytes) -> Kind:
    """Return the message in one line.

    Raises:
        DecodeError: The line is not a message of this kind.
    """
    message: Kind = strict_json.parse(kind, strict_json.loads(line))
    return message


async def read_line(reader: asyncio.StreamReader, most_bytes: int = LINE_BYTES) -> bytes:
    """Return the next line, which may be longer than the reader's limit; empty at the end of the connection.

    Raises:
        DecodeError: The line has more than ``most_bytes``.
        OSError: The connection broke.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            line += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            line += await reader.readexactly(error.consumed)
        except asyncio.IncompleteReadError:
            return b""
        if len(line) > most_bytes:
            raise strict_json.DecodeError(f"a line of more than {most_bytes} bytes")
    return bytes(line)


MOST_CONNECTIONS: Final = 4096
"""Connections of all ports together."""
MOST_PORTS: Final = 4
"""The meeting or rendezvous port and one chosen by the kernel, each with IPv4 and IPv6."""
MOST_CONNECTIONS_PER_ADDRESS: Final = 64
LOG_LINES_PER_MINUTE: Final = 6

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """First line after the handshake, and the response to a request for the time."""

    preflight: int
    """:data:`~ddp_preflight.schema.VERSION` of the sender."""
    token: str
    time: float
    """Seconds since the epoch."""


def encode_banner(token: str) -> bytes:
    """Return the encoded banner of a preflight, with the present time."""
    return encode(Banner(preflight=VERSION, token=token, time=time.time()))


async def read_banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes | None) -> Banner:
    """Authenticate to a listener, unless there is no key, and return its banner.

    Raises:
        HandshakeError: The listener has another key.
        DecodeError: The listener is not a preflight of this version.
        OSError: The connection broke.
    """
    if key is not None:
        await authenticate(reader, writer, key, HANDSHAKE_VERSION)
    received = decode(Banner, await read_line(reader))
    if received.preflight != VERSION:
        raise DecodeError(f"version {received.preflight} of the preflight instead of {VERSION}")
    return received


class PreflightServer:
    """All ports on which the preflight of this node listens. Use with :func:`contextlib.aclosing`."""

    def __init__(self, token: str, address: str, key: bytes | None, serve: Serve | None = None) -> None:
        """Create the listener without any port.

        Args:
            token: Token of this preflight.
            address: Address to listen on; empty for every interface.
            key: Authentication key of the peers; None to accept every peer.
            serve: Called with an authenticated connection, after the banner.
        """
        self.token = token
        self._key = key
        self._address = address
        self._serve = serve
        self._servers: dict[int, list[LimitedServer]] = {}
        self._log = RateLimitedLog(lines_per_minute=LOG_LINES_PER_MINUTE, write=_print)

    async def listen(self, port: int) -> int:
        """Listen on ``port``, or on a port chosen by the kernel for 0.

        Returns:
            The port.

        Raises:
            OSError: The port cannot be used.
        """
        if port and port in self._servers:
            return port
        # Both families use one number: the second socket takes the port of the first.
        hosts = [self._address] if self._address else ["0.0.0.0", "::"]  # noqa: S104 - peers come from everywhere
        first = self._start(hosts[0], port)
        number = int(first.getsockname()[1])
        if len(hosts) > 1:
            with contextlib.suppress(OSError):  # a kernel without IPv6
                self._start(hosts[1], number)
        return number

    def _start(self, host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        total = max(1, apply_fd_limit(MOST_CONNECTIONS, may_raise=False) // MOST_PORTS)  # the limit is reported
        limits = ConnectionLimits(total=total, per_address=min(MOST_CONNECTIONS_PER_ADDRESS, max(1, total // 4)))
        server = LimitedServer(listener, self._serve_connection, limits=limits, log=self._log, buffer_bytes=MOST_BYTES)
        self._servers.setdefault(listener.getsockname()[1], []).append(server)
        server.start()
        return listener

    async def aclose(self) -> None:
        """Close all ports and connections."""
        for server in [server for servers in self._servers.values() for server in servers]:
            await server.close()

    async def _serve_connection(self, connection: Connection) -> None:
        reader, writer = connection.reader, connection.writer
        with contextlib.suppress(ValueError, HandshakeError):
            if self._key is not None:
                await authenticate_client(reader, writer, self._key, HANDSHAKE_VERSION)
            connection.is_kept = True
            writer.write(encode_banner(self.token))
            await writer.drain()
            if self._serve:
                await self._serve(reader, writer)


def _print(line: str) -> None:
    print(f"ddp-launch preflight: {line}", file=sys.stderr, flush=True)


def bind_error_message(port: int, error: OSError) -> str:
    """Return a sentence about a port that cannot be used."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken{holder(port)}"
    return f"port {port} cannot be listened on: {error.strerror}"


def holder(port: int) -> str:
    """Return the process that listens on the port, as `` by process 7 (python)``; empty if it is not visible."""
    wanted = f":{port:04X}"
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            inodes |= {row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and inodes & _socket_inodes(process):
            with contextlib.suppress(OSError):
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _socket_inodes(process: Path) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                    found.add(match[1])
    return found


CONNECT_SECONDS: Final = 5.0
"""Timeout in seconds. A lost SYN is repeated after 1 s and after 3 s, so this allows two losses."""
_AT_ONCE: Final = 64
_NO_ROUTE: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


_Door = tuple[str, ProbeKind, str, int]
"""Token of the expected peer, or empty to accept any; purpose; address; port."""


async def probe(own: Report, reports: tuple[Report, ...], key: bytes | None) -> tuple[Probe, ...]:
    """Probe all ports of all peers from this node, :data:`_AT_ONCE` in parallel."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def probe_target(target: str, purpose: ProbeKind, address: str, port: int) -> Probe:
        async with limit:
            outcome = await probe_port(address, port, target, key)
        return Probe(source=own.token, target=target, purpose=purpose, address=address, port=port, outcome=outcome)

    doors: list[_Door] = [("", ProbeKind.ENDPOINT, address, own.endpoint_port) for address in own.endpoint.addresses]
    for peer in reports:
        if peer.token != own.token:
            doors += _ports_to_probe(own, peer)
    return tuple(await asyncio.gather(*(probe_target(*door) for door in doors)))


def _ports_to_probe(own: Report, peer: Report) -> Iterator[_Door]:
    """Yield the ports of a peer that the ranks of other nodes will need."""
    if peer.route:
        yield peer.token, ProbeKind.RANDOM, peer.route, peer.listening.random
        if peer.listening.rendezvous:
            yield peer.token, ProbeKind.RENDEZVOUS, peer.route, peer.listening.rendezvous
    for purpose, chosen in ((ProbeKind.GLOO, peer.gloo), (ProbeKind.NCCL, peer.nccl)):
        is_elsewhere = chosen.address not in {"", peer.route}
        # No probe for a loopback address, which is local everywhere, or for a node on the same machine.
        if is_elsewhere and not is_loopback(chosen.address) and peer.machine != own.machine:
            yield peer.token, purpose, chosen.address.partition("%")[0], peer.listening.random


async def probe_port(address: str, port: int, token: str, key: bytes | None) -> Outcome:
    """Connect and verify the peer; an empty ``token`` accepts any peer."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address, port, limit=MOST_BYTES)
            try:
                is_expected = not token or (await read_banner(reader, writer, key)).token == token
                return Outcome.OK if is_expected else Outcome.STRANGER
            finally:
                await hang_up(writer)
    except (DecodeError, HandshakeError):
        return Outcome.STRANGER
    except TimeoutError:
        return Outcome.TIMED_OUT
    except OSError as error:
        return outcome_of(error)


def outcome_of(error: OSError) -> Outcome:
    """Return the outcome of a failed connection attempt. Unknown errors count as refused."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Outcome.TIMED_OUT
    return Outcome.NO_ROUTE if error.errno in _NO_ROUTE else Outcome.REFUSED
