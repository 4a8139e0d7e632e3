"""Acceptance of connections for the store, within limits on connections and open files.

:class:`Acceptor` accepts a connection only if there is room for it. It makes room by closing the oldest connection that
has not authenticated. asyncio's own server accepts its whole backlog, and prints a traceback for each connection that
the kernel refuses because descriptors ran out. The acceptor passes sockets to an :class:`asyncio.Protocol`. With
thousands of agents this costs less than one task per connection, as in :mod:`ddp_trainer.net.limited_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final, Protocol

from ddp_trainer.net.limited_server import ConnectionLimits, client_of

BACKLOG: Final = 4096
AT_ONCE: Final = 64
"""Most connections accepted in a row, before other work runs."""
RETRY_SECONDS: Final = 1.0
"""Pause after the kernel refused a connection because descriptors or memory ran out."""


class Pending(Protocol):
    """A connection that has not authenticated yet."""

    address: str

    def close(self) -> None:
        """Close it."""

    def close_if_timed_out(self, now: float) -> None:
        """Close it if it has not authenticated in time.

        Args:
            now: Current time of the event loop, in seconds.
        """


class Acceptor:
    """Accepts the connections of listening sockets."""

    def __init__(
        self, limits: ConnectionLimits, make: Callable[[str], asyncio.Protocol], log: Callable[[str], None]
    ) -> None:
        """Create an acceptor without listening sockets.

        Args:
            limits: Limits on connections, in total and per address.
            make: Returns the protocol of a new connection from an address.
            log: Writes a line.
        """
        self._limits = limits
        self._make = make
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._pending: dict[Pending, None] = {}
        self._most_pending = max(1, limits.total // 2)
        self._is_paused = False
        self._tasks: set[asyncio.Task[None]] = set()

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
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind((address[0], port, *address[2:]))
            port = listener.getsockname()[1]
        for listener in self._listeners:
            listener.listen(BACKLOG)
            self._loop.add_reader(listener, self._accept, listener)
        return port

    def close(self) -> None:
        """Stop listening, and close connections that have not authenticated."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for connection in list(self._pending):
            connection.close()

    def add_pending(self, connection: Pending) -> None:
        """Add a new connection to the pending ones. If half of all connections are pending, close the oldest."""
        if len(self._pending) >= self._most_pending:
            self._close_oldest()
        self._pending[connection] = None

    def discard_pending(self, connection: Pending) -> None:
        """Remove a connection from the pending ones."""
        self._pending.pop(connection, None)

    def ended(self, connection: Pending) -> None:
        """Release the place of a closed connection."""
        self._pending.pop(connection, None)
        self._limits.release(connection.address)
        self._resume()

    def pending(self) -> list[Pending]:
        """Return the connections that have not authenticated yet, the oldest first."""
        return list(self._pending)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            if self._limits.is_full and self._close_oldest():
                self._pause()  # until its descriptor is free
                return
            try:
                accepted, name = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._log(f"cannot accept a connection: {error.strerror}; trying again in {RETRY_SECONDS:g} s")
                self._pause()
                self._loop.call_later(RETRY_SECONDS, self._resume)
                return
            self._open_within_limits(accepted, str(name[0]))

    def _open_within_limits(self, accepted: socket.socket, address: str) -> None:
        if not self._limits.try_acquire(address):
            accepted.close()
            self._close_oldest(client_of(address))
            self._log(f"closed a new connection of {address}: there are too many, of this address or in total")
            return
        task = self._loop.create_task(self._open(accepted, address))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, accepted: socket.socket, address: str) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(address), accepted)
        except OSError:
            accepted.close()
            self._limits.release(address)
            self._resume()

    def _close_oldest(self, client: str | None = None) -> bool:
        """Close the oldest pending connection, of one client or of all. Return whether there was one."""
        for connection in self._pending:
            if client in {None, client_of(connection.address)}:
                connection.close()
                return True
        return False

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            for listener in self._listeners:
                self._loop.remove_reader(listener)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            for listener in self._listeners:
                with contextlib.suppress(OSError, ValueError):
                    self._loop.add_reader(listener, self._accept, listener)
