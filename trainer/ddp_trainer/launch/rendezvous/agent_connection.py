"""Store side of one connection: handshake, then one Hello, then messages of bounded length.

:class:`AgentConnection` passes the messages to its :class:`~ddp_trainer.launch.rendezvous.store.Store`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.protocol import messages
from ddp_trainer.net.asyncio_utils import tune
from ddp_trainer.net.handshake import MOST_BYTES as MOST_BYTES_BEFORE
from ddp_trainer.net.handshake import SECONDS as HANDSHAKE_SECONDS
from ddp_trainer.net.handshake import HandshakeError, ServerHandshake

if TYPE_CHECKING:
    from ddp_trainer.launch.rendezvous.store import Store

_OLD_PEER: Final = (
    "This run's store authenticates every agent, and this launcher does not: it has version {version} of the protocol "
    f"instead of {messages.VERSION}. Use one image for all pods of a job."
)


class AgentConnection(asyncio.Protocol):
    """One TCP connection of the store."""

    def __init__(self, store: Store, address: str) -> None:
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
