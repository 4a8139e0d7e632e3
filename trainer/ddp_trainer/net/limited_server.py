"""Server on asyncio streams that enforces :class:`~ddp_trainer.net.connection_limits.ConnectionLimits`.

asyncio's own server accepts up to its backlog in one go, before connections can be counted, and prints a traceback when
no descriptor is left. :class:`LimitedServer` accepts one connection at a time, so the limits also cover open files.
Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from ddp_trainer.net.connection_limits import ConnectionLimits, RateLimitedLog, client_of

RETRY_SECONDS: Final = 1.0
"""Pause in seconds after the kernel could not accept a connection for lack of descriptors or memory."""
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
class LimitedServer:
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
    limits: ConnectionLimits
    """Limits of this listener alone."""
    log: RateLimitedLog
    """Receives refusals and unexpected errors."""
    buffer_bytes: int
    """Limit of the stream reader. Unread bytes of one peer take at most four times as many in this process, and twice
    as many in the kernel.
    """
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _open: dict[asyncio.Task[None], _Place] = field(default_factory=dict)
    _is_accepting: bool = False
    _is_closed: bool = False

    def start(self) -> None:
        """Start to listen and to accept connections."""
        self.listener.setblocking(False)
        if self.listener.family != socket.AF_UNIX:
            # Accepted sockets inherit the size. It bounds asyncio's reads: one read takes all that the kernel holds.
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
        self.listener.listen(min(max(self.limits.total, LEAST_BACKLOG), socket.SOMAXCONN))
        self._resume()

    async def close(self) -> None:
        """Stop listening, close every connection, and wait until all are closed."""
        self._pause()
        self._is_closed = True
        self.listener.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))
        self.log.flush()

    # ------------------------------------------------------------------ accepting

    def _pause(self) -> None:
        if self._is_accepting:
            self._loop.remove_reader(self.listener)
            self._is_accepting = False

    def _resume(self) -> None:
        if not self._is_accepting and not self._is_closed:
            self._loop.add_reader(self.listener, self._accept)
            self._is_accepting = True

    def _accept(self) -> None:
        is_full = len(self._open) >= self.limits.total
        if is_full and (self._drop_oldest() or any(place.is_leaving for place in self._open.values())):
            self._pause()  # until a descriptor is free; waiting clients stay in the kernel's queue
            return
        try:
            accepted, name = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self.log.write(f"cannot accept a connection: {error.strerror}; trying again in {RETRY_SECONDS:g} s")
            self._pause()
            self._loop.call_later(RETRY_SECONDS, self._resume)
            return
        address = str(name[0]) if isinstance(name, tuple) else ""
        place = _Place(address)
        if not is_full and self.limits.is_full_for(address):
            self._drop_oldest(client_of(address))
        if is_full or not self.limits.try_acquire(address):
            accepted.close()
            self.log.write(f"closed a new connection of {place.name}: {self._limit_message(address)}")
            return
        task = self._loop.create_task(self._run(accepted, place))
        self._open[task] = place
        task.add_done_callback(lambda done: self._ended(done, accepted))

    def _limit_message(self, address: str) -> str:
        if self.limits.is_full_for(address):
            return f"it has {self.limits.per_address} already, as many as one address may have"
        return f"there are {self.limits.total} already, as many as may be"

    def _drop_oldest(self, client: str | None = None) -> bool:
        """Close the oldest connection that is not kept, of one client or of all, and return whether there was one."""
        for task, place in self._open.items():
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
        self._release(self._open.pop(task))
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
