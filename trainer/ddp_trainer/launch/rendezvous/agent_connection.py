"""Connections of the store, within limits on connections and open files.

:class:`AgentConnection` is the store's side of one connection: handshake, then one Hello, then messages of bounded
length. It passes the messages to the store, its :class:`ConnectionOwner`. :class:`StoreAcceptor` makes room by closing
the oldest connection that has not authenticated. It passes sockets to an :class:`asyncio.Protocol`. With thousands of
agents this costs less than one task per connection, as in :class:`~ddp_trainer.net.limited_server.LimitedServer`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.timeouts import HeartbeatTimeouts
from ddp_trainer.net.asyncio_utils import tune
from ddp_trainer.net.handshake import MOST_BYTES as MOST_BYTES_BEFORE
from ddp_trainer.net.handshake import SECONDS as HANDSHAKE_SECONDS
from ddp_trainer.net.handshake import HandshakeError, ServerHandshake
from ddp_trainer.net.limited_server import Acceptor, client_of

BACKLOG: Final = 4096
_OLD_PEER: Final = (
    "This run's store authenticates every agent, and this launcher does not: it has version {version} of the protocol "
    f"instead of {messages.VERSION}. Use one image for all pods of a job."
)


class ConnectionOwner(Protocol):
    """Interface of the store for its connections."""

    key: bytes
    heartbeat: HeartbeatTimeouts
    acceptor: StoreAcceptor

    def register_connection(self, connection: AgentConnection) -> int:
        """Register a connection that has authenticated, and return its number."""

    def record_rejection(self, address: str, why: str) -> None:
        """Count a connection that failed the handshake."""

    def handle_message(self, peer: int, message: messages.FromAgent) -> None:
        """Process a message."""

    def lost(self, peer: int) -> None:
        """Forget an authenticated connection."""

    def log(self, line: str) -> None:
        """Write a line."""


class AgentConnection(asyncio.Protocol):
    """One TCP connection of the store."""

    def __init__(self, store: ConnectionOwner, address: str) -> None:
        self.address = address
        self._store = store
        self._transport: asyncio.Transport | None = None
        self._handshake: ServerHandshake | None = None
        """The running handshake. It is None after authentication."""
        self._peer = 0
        """Number of this connection after authentication; 0 before."""
        self._has_hello = False
        self._buffer = bytearray()
        self._silent_since = 0.0
        self._handshake_until = 0.0

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"), self._store.heartbeat.timeout)
        self._handshake = ServerHandshake(self._store.key, messages.VERSION)
        self._silent_since = asyncio.get_running_loop().time()
        self._handshake_until = self._silent_since + HANDSHAKE_SECONDS
        self._store.acceptor.add_pending(self)

    def data_received(self, data: bytes) -> None:
        """Split the received data into lines and process them."""
        self._silent_since = asyncio.get_running_loop().time()
        self._buffer += data
        try:
            while not self._is_closing and (line := self._next_line()):
                self._line(line)
        except HandshakeError as error:
            self._store.record_rejection(self.address, str(error))
            self.close()
        except messages.ProtocolError as error:
            if self._handshake is None:
                self._store.log(f"closed the connection from {self.address}: {error}")
            else:
                self._store.record_rejection(self.address, str(error))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection."""
        self._store.acceptor.ended(self)
        if self._peer:
            self._store.lost(self._peer)
        self._buffer.clear()

    # ------------------------------------------------------------------ called by the store

    @property
    def write_buffer_size(self) -> int:
        """Bytes that the peer has not received yet."""
        return self._transport.get_write_buffer_size() if self._transport else 0

    def send(self, line: bytes) -> None:
        """Send a line."""
        if self._transport and not self._transport.is_closing():
            self._transport.write(line)

    def close(self) -> None:
        """Close the connection after all sent data is out."""
        self._store.acceptor.discard_pending(self)
        if self._peer:
            self._store.lost(self._peer)
        if self._transport:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection and discard unsent data, because the peer does not read it."""
        self.close()
        if self._transport:
            self._transport.abort()

    def close_if_timed_out(self, now: float) -> None:
        """Close the connection after too long a silence, or without authentication in time."""
        is_late = self._handshake is not None and now > self._handshake_until
        if is_late or now > self._silent_since + self._store.heartbeat.timeout:
            self.abort()

    # ------------------------------------------------------------------ lines

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _next_line(self) -> bytes:
        """Return the next whole line; empty if there is none yet. Raises ProtocolError if the line is too long."""
        end = self._buffer.find(b"\n") + 1
        if (end or len(self._buffer)) > (messages.LINE_BYTES if self._handshake is None else MOST_BYTES_BEFORE):
            raise messages.ProtocolError("a line that is too long")
        line = bytes(self._buffer[:end])
        del self._buffer[:end]
        return line

    def _line(self, line: bytes) -> None:
        if self._handshake is None:
            self._message(messages.decode(line))
        elif self._handshake.expects_proof:
            self._handshake.verify(line)
            self._handshake = None
            self._store.acceptor.discard_pending(self)
            self._peer = self._store.register_connection(self)
        else:
            self._send_challenge(line)

    def _send_challenge(self, line: bytes) -> None:
        assert self._handshake is not None  # noqa: S101 - called only during the handshake
        try:
            self.send(self._handshake.make_challenge(line))
        except HandshakeError:
            # A launcher from before the handshake prints this and ends.
            if version := messages.legacy_protocol_version(line):
                why = _OLD_PEER.format(version=version)
                self.send(messages.encode(messages.Rejected(why=why, exit_code=int(Exit.RENDEZVOUS_LOST))))
            raise

    def _message(self, message: object) -> None:
        if not isinstance(message, messages.FromAgent):
            raise messages.ProtocolError("a message that only the store sends")
        if isinstance(message, messages.Hello) == self._has_hello:
            raise messages.ProtocolError("a second Hello" if self._has_hello else "a message before Hello")
        self._has_hello = True
        self._store.handle_message(self._peer, message)


@dataclass(slots=True, eq=False, kw_only=True)
class StoreAcceptor(Acceptor):
    """Accepts the connections of agents."""

    make: Callable[[str], AgentConnection]
    """Returns the protocol of a new connection from an address."""
    _pending: dict[AgentConnection, None] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def listen(self, host: str, port: int) -> int:
        """Listen on an address, or on all interfaces if ``host`` is empty.

        Returns:
            The port.

        Raises:
            OSError: If the address cannot be used.
        """
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in sorted(found, key=lambda entry: entry[0] != socket.AF_INET):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a kernel without this family
            self._listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            port = listener.getsockname()[1]
        self._accept_from(BACKLOG)
        return port

    def close(self) -> None:
        """Stop listening, and close connections that have not authenticated."""
        self._stop_listening()
        for connection in list(self._pending):
            connection.close()

    def add_pending(self, connection: AgentConnection) -> None:
        """Add a new connection to the pending ones. If half of all connections are pending, close the oldest."""
        if len(self._pending) >= max(1, self.limits.total // 2):
            self._evict_connection()
        self._pending[connection] = None

    def discard_pending(self, connection: AgentConnection) -> None:
        """Remove a connection from the pending ones."""
        self._pending.pop(connection, None)

    def ended(self, connection: AgentConnection) -> None:
        """Release the place of a closed connection."""
        self._pending.pop(connection, None)
        self.limits.release(connection.address)
        self._resume()

    def pending(self) -> list[AgentConnection]:
        """Return the connections that have not authenticated yet, the oldest first."""
        return list(self._pending)

    def _available(self) -> int:
        return self.limits.available

    def _open(self, accepted: socket.socket, address: str) -> None:
        if not self.limits.try_acquire(address):
            accepted.close()
            self._evict_connection(client_of(address))
            self.log.write(f"closed a new connection of {address}: there are too many, of this address or in total")
            return
        task = self._loop.create_task(self._connect(accepted, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self.make(address), accepted)
        except OSError:
            accepted.close()
            self.limits.release(address)
            self._resume()

    def _evict_connection(self, client: str | None = None) -> bool:
        """Close the oldest pending connection, of one client or of all. Return whether there was one."""
        for connection in self._pending:
            if client in {None, client_of(connection.address)}:
                connection.close()
                return True
        return False
