"""Server for few, slow or hostile clients, with limits for connections in total and by address.

:class:`ConnectionLimits` counts connections, :func:`apply_fd_limit` lowers a limit of connections to the limit of open
files, and :class:`RateLimitedLog` drops log lines above a rate. Standard library only: the launcher, the aggregator and
the preflight import this module.

asyncio's own server accepts up to its backlog in one go, before connections can be counted, and prints a traceback when
no descriptor is left. :class:`Acceptor` accepts only what it has room for, so the limits also cover open files.
:class:`LimitedServer` serves each connection with streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import resource
import socket
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

RESERVED_DESCRIPTORS: Final = 64
"""Open files that a process needs in addition to its connections."""
WINDOW_SECONDS: Final = 60.0
_IPV6_NETWORK_BITS: Final = 64
"""Prefix length of an IPv6 network; one host may use every address in it."""


def client_of(address: str) -> str:
    """Return the key under which connections from an address are counted; empty for a client on this machine.

    Each IPv4 address counts separately, also when it is mapped into IPv6. IPv6 addresses count by their /64 network,
    except link-local ones, which count separately. Loopback addresses and Unix sockets have no limit per address.

    >>> client_of("::ffff:192.0.2.7"), client_of("2001:db8::1:2:3:4"), client_of("fe80::1%eth0"), client_of("127.0.0.1")
    ('192.0.2.7', '2001:db8::/64', 'fe80::1', '')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        parsed = parsed.ipv4_mapped or parsed
    if parsed.is_loopback:
        return ""
    if parsed.version == 4 or parsed.is_link_local:
        return str(parsed)
    return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))


def apply_fd_limit(wanted: int, *, reserved: int = RESERVED_DESCRIPTORS, may_raise: bool = True) -> int:
    """Return how many connections, at most ``wanted``, fit into the limit of open files; at least 1.

    Raises the soft limit of the process as far as ``wanted`` needs it and the hard limit permits, if ``may_raise``.

    Args:
        wanted: Most connections that the listener would hold at the same time.
        reserved: Open files to keep for everything else in this process.
        may_raise: False to leave the limit of the process unchanged.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + reserved
    if may_raise and soft != resource.RLIM_INFINITY and soft < needed:
        raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - reserved))


class ConnectionLimits:
    """Count of open connections, in total and per address."""

    def __init__(self, *, total: int, per_address: int) -> None:
        self.total = total
        self.per_address = per_address
        self._open: Counter[str] = Counter()

    @property
    def available(self) -> int:
        """Number of connections up to the total limit."""
        return self.total - self._open.total()

    @property
    def is_full(self) -> bool:
        """True if the total limit is reached."""
        return self.available <= 0

    def is_full_for(self, address: str) -> bool:
        """Return whether the limit per address is reached for this address."""
        client = client_of(address)
        return bool(client) and self._open[client] >= self.per_address

    def try_acquire(self, address: str) -> bool:
        """Count one more connection from an address unless a limit is reached, and return whether it was counted."""
        if self.is_full or self.is_full_for(address):
            return False
        self._open[client_of(address)] += 1
        return True

    def release(self, address: str) -> None:
        """Remove one connection from the count of an address that was admitted."""
        client = client_of(address)
        self._open[client] -= 1
        if self._open[client] <= 0:
            del self._open[client]


class RateLimitedLog:
    """Log that writes a limited number of lines per minute and counts the others.

    It writes the count as one more line with the first line of the next minute, and in :meth:`flush`.
    """

    def __init__(
        self, *, lines_per_minute: int, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lines_per_minute = lines_per_minute
        self._write = write
        self._clock = clock
        self._begun = float("-inf")
        self._written = 0
        self._suppressed = 0

    def write(self, line: str) -> None:
        """Write a line, or count it if the limit of this minute is reached."""
        now = self._clock()
        if now - self._begun >= WINDOW_SECONDS:
            self.flush()
            self._begun, self._written = now, 0
        if self._written < self._lines_per_minute:
            self._written += 1
            self._write(line)
        else:
            self._suppressed += 1

    def flush(self) -> None:
        """Write the number of lines dropped since the last flush, if there are any."""
        suppressed, self._suppressed = self._suppressed, 0
        if suppressed:
            self._write(f"{suppressed} more lines like these were suppressed (limit {self._lines_per_minute} a minute)")


RETRY_SECONDS: Final = 1.0
"""Pause in seconds after the kernel could not accept a connection for lack of descriptors or memory."""
AT_ONCE: Final = 64
"""Most connections accepted in a row, before other work runs."""


@dataclass(slots=True, eq=False, kw_only=True)
class Acceptor(ABC):
    """Accepts the connections of listening sockets, and pauses while a connection closes to make room for another."""

    limits: ConnectionLimits
    """Limits of these sockets alone."""
    log: RateLimitedLog
    """Receives refusals and unexpected errors."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _listeners: list[socket.socket] = field(default_factory=list)
    _is_accepting: bool = False

    @abstractmethod
    def _available(self) -> int:
        """Return the number of connections for which there is room."""

    @abstractmethod
    def _evict_connection(self) -> bool:
        """Close a connection that may be closed, and return whether one closes."""

    @abstractmethod
    def _open(self, accepted: socket.socket, address: str) -> None:
        """Serve a connection, or close it if a limit is reached. The address of a Unix socket is empty."""

    def _accept_from(self, backlog: int) -> None:
        for listener in self._listeners:
            listener.setblocking(False)
            listener.listen(backlog)
        self._resume()

    def _stop_listening(self) -> None:
        self._pause()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def _pause(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener in self._listeners:
                self._loop.remove_reader(listener)

    def _resume(self) -> None:
        if not self._is_accepting:
            self._is_accepting = True
            for listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        available = self._available()
        if available <= 0 and self._evict_connection():
            self._pause()  # until a descriptor is free; waiting clients stay in the kernel's queue
            return
        for _ in range(max(1, min(available, AT_ONCE))):
            try:
                accepted, name = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.log.write(f"cannot accept a connection: {error.strerror}; trying again in {RETRY_SECONDS:g} s")
                self._pause()
                self._loop.call_later(RETRY_SECONDS, self._resume)
                return
            self._open(accepted, str(name[0]) if isinstance(name, tuple) else "")


LEAST_BACKLOG: Final = 256
"""Least number of connections that the kernel queues. Beyond it, a client must retry after a second."""
CLOSE_SECONDS: Final = 5.0
"""Longest time in seconds that a peer may take to read the last bytes sent to it."""


@dataclass(slots=True, eq=False)
class Connection:
    """One open connection."""

    address: str
    """Address of the peer; empty for a Unix socket."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_kept: bool = False
    """True once the peer is authenticated: the connection is not closed to make room for a newer one."""


@dataclass(slots=True, eq=False)
class _Place:
    """Entry of one connection in the limits."""

    address: str
    connection: Connection | None = None
    is_leaving: bool = False
    """True once the connection is closing and no longer counts for its address."""

    @property
    def name(self) -> str:
        """Name of the peer for the log."""
        return self.address or "this machine"


@dataclass(slots=True, eq=False)
class LimitedServer(Acceptor):
    """Server of one listening socket that keeps its connections within limits.

    When a limit is reached, it closes the oldest connection that is not kept, so idle clients do not keep others out.
    If all connections are kept, it closes the new one immediately.
    """

    listener: socket.socket
    """Bound socket, TCP or Unix; the server owns it from now on."""
    serve: Callable[[Connection], Awaitable[None]]
    """Serves one peer until it returns; then the connection is closed. OSError, EOFError and LimitOverrunError end the
    connection silently. Any other exception is logged.
    """
    _: KW_ONLY
    buffer_bytes: int
    """Limit of the stream reader. Unread bytes of one peer take at most four times as many in this process, and twice
    as many in the kernel.
    """
    _places: dict[asyncio.Task[None], _Place] = field(default_factory=dict)

    def start(self) -> None:
        """Start to listen and to accept connections."""
        if self.listener.family != socket.AF_UNIX:
            # Accepted sockets inherit the size. It bounds asyncio's reads: one read takes all that the kernel holds.
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        self._listeners.append(self.listener)
        self._accept_from(min(max(self.limits.total, LEAST_BACKLOG), socket.SOMAXCONN))

    async def close(self) -> None:
        """Stop listening, close every connection, and wait until all are closed."""
        self._stop_listening()
        for task in self._places:
            task.cancel()
        if self._places:
            await asyncio.wait(list(self._places))
        self.log.flush()

    # ------------------------------------------------------------------ accepting

    def _available(self) -> int:
        return self.limits.total - len(self._places)

    def _evict_connection(self) -> bool:
        return self._drop_oldest() or any(place.is_leaving for place in self._places.values())

    def _open(self, accepted: socket.socket, address: str) -> None:
        place = _Place(address)
        if not self.limits.is_full and self.limits.is_full_for(address):
            self._drop_oldest(client_of(address))
        if not self.limits.try_acquire(address):
            accepted.close()
            self.log.write(f"closed a new connection of {place.name}: {self._limit_message(address)}")
            return
        task = self._loop.create_task(self._run(accepted, place))
        self._places[task] = place
        task.add_done_callback(lambda done: self._ended(done, accepted))

    def _limit_message(self, address: str) -> str:
        if self.limits.is_full_for(address):
            return f"it has {self.limits.per_address} already, as many as one address may have"
        return f"there are {self.limits.total} already, as many as may be"

    def _drop_oldest(self, client: str | None = None) -> bool:
        """Close the oldest connection that is not kept, of one client or of all, and return whether there was one."""
        for task, place in self._places.items():
            is_kept = place.is_leaving or (place.connection is not None and place.connection.is_kept)
            if not is_kept and client in {None, client_of(place.address)}:
                self._release(place)
                task.cancel()
                return True
        return False

    def _release(self, place: _Place) -> None:
        if not place.is_leaving:
            place.is_leaving = True
            self.limits.release(place.address)

    def _ended(self, task: asyncio.Task[None], accepted: socket.socket) -> None:
        accepted.close()  # needed if the task was cancelled before its first step
        self._release(self._places.pop(task))
        self._resume()

    # ------------------------------------------------------------------ serving

    async def _run(self, accepted: socket.socket, place: _Place) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=accepted, limit=self.buffer_bytes)
        except OSError as error:
            self.log.write(f"cannot serve a connection of {place.name}: {error.strerror}")
            return
        place.connection = Connection(place.address, reader, writer)
        try:
            await self.serve(place.connection)
            writer.close()
            async with asyncio.timeout(CLOSE_SECONDS):
                await writer.wait_closed()
        except (asyncio.CancelledError, OSError, EOFError, asyncio.LimitOverrunError):
            pass  # closed by this server, lost, timed out, or not a peer of this run
        except Exception as error:  # noqa: BLE001 - one peer must not end the server
            self.log.write(f"connection of {place.name} ended by an unexpected error: {error!r}")
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
