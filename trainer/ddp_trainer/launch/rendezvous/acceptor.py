"""Connections of the store, within limits on connections and open files.

:class:`StoreAcceptor` makes room by closing the oldest connection that has not authenticated. It passes sockets to an
:class:`asyncio.Protocol`. With thousands of agents this costs less than one task per connection, as in
:class:`~ddp_trainer.net.limited_server.LimitedServer`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.launch.rendezvous.agent_connection import AgentConnection
from ddp_trainer.net.limited_server import Acceptor, client_of

BACKLOG: Final = 4096


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
            self._make_room()
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

    def _room(self) -> int:
        return self.limits.room

    def _open(self, accepted: socket.socket, address: str) -> None:
        if not self.limits.try_acquire(address):
            accepted.close()
            self._make_room(client_of(address))
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

    def _make_room(self, client: str | None = None) -> bool:
        """Close the oldest pending connection, of one client or of all. Return whether there was one."""
        for connection in self._pending:
            if client in {None, client_of(connection.address)}:
                connection.close()
                return True
        return False
