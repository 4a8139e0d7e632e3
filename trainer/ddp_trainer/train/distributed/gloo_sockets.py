"""Network connections of a gloo process group, which another thread can shut down to abort collectives.

gloo has no way to abort a collective: if a peer does not respond, the collective waits for its timeout. Shutting down a
connection on either side immediately ends every wait on it, also on the peer. :class:`GlooSockets` finds the
connections of a group. Connections of other threads, such as those to object stores, are not among them.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

_OPEN = Path("/proc/self/fd")
_DETAILS = Path("/proc/self/fdinfo")
_WATCHED: Final = re.compile(r"tfd:\s*(\d+) events:\s*\w+ data:\s*(\w+)")
"""Descriptor (decimal) and the program's own value (hexadecimal) of an entry of an epoll instance."""
_POLL_SECONDS: Final = 0.02
"""Interval between checks for connections that open after a call-off, in seconds."""


class GlooSockets:
    """Connections of gloo and of the group's store that open between :meth:`__init__` and :meth:`complete`, or inside
    :meth:`more`.
    """

    def __init__(self, store_port: int = 0) -> None:
        """Initialize with the port of the group's store; 0 if the group has none."""
        self._store_port = store_port
        self._before = self._list_connections()
        self._own: set[tuple[int, int]] | None = None
        self.are_called_off = False
        """True if the connections were cut from outside of training: a rank of the group is lost or about to leave."""
        self._opening = threading.Lock()
        """Held while connections that open after a call-off are cut."""
        self._has_ended = False

    def complete(self) -> None:
        """Record the connections of the group, after all of them are open."""
        with self._opening:
            self._own = self._list_connections() - self._before
        if self.are_called_off:
            self.cut()

    @contextlib.contextmanager
    def more(self) -> Iterator[None]:
        """Add the connections opened inside the context, such as those of subgroups."""
        known = self._own or set()
        self._before, self._own = self._list_connections() - known, None
        try:
            yield
        finally:
            self.complete()

    def call_off(self) -> None:
        """Cut the connections from another thread while training runs, and set :attr:`are_called_off`.

        A process that is joining may open further ones, and would wait on them for peers that have left. They are cut
        until :meth:`complete` or :meth:`end`.
        """
        self.are_called_off = True
        self.cut()
        if self._own is None:
            threading.Thread(target=self._cut_opening, name="ddp-cut", daemon=True).start()

    def _cut_opening(self) -> None:
        while True:
            with self._opening:
                if self._own is not None or self._has_ended:
                    return
                self.cut()
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        """Cut the connections of a group that could not be joined. Those that open later belong to another group."""
        with self._opening:
            self._has_ended = True
            self.cut()

    def cut(self) -> None:
        """Shut down the connections. Any thread may call this, also before :meth:`complete`."""
        for descriptor, inode in self._list_connections() - self._before if self._own is None else self._own:
            with contextlib.suppress(OSError), _same_socket(descriptor, inode) as connection:
                connection.shutdown(socket.SHUT_RDWR)

    def _list_connections(self) -> set[tuple[int, int]]:
        """Return (descriptor, inode) of every connection of this process that gloo or the store may have opened."""
        sockets, polls = _list_sockets()
        listening: set[int] = set()
        connections: dict[int, set[int]] = {}
        for descriptor, inode in sockets.items():
            with contextlib.suppress(OSError), _same_socket(descriptor, inode) as found:
                if found.family not in {socket.AF_INET, socket.AF_INET6}:
                    continue
                # No collective waits on a listening socket, and gloo ends the process when accept() fails.
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    listening.add(descriptor)
                else:
                    connections[descriptor] = _ports_of(found)
        if _names_watched():
            of_gloo = {descriptor for poll in polls for descriptor in _watched_by_gloo(poll, listening)}
            # Rank 0 may be the store itself, so that its own end of a connection has the port.
            connections = {
                descriptor: ports
                for descriptor, ports in connections.items()
                if descriptor in of_gloo or self._store_port in ports
            }
        return {(descriptor, sockets[descriptor]) for descriptor in connections}


def _list_sockets() -> tuple[dict[int, int], list[int]]:
    """Return descriptor → inode of every socket of this process, and the descriptors of its epoll instances."""
    sockets: dict[int, int] = {}
    polls: list[int] = []
    with contextlib.suppress(OSError):  # not on Linux
        for entry in os.listdir(_OPEN):  # noqa: PTH208 - three times as fast as pathlib
            with contextlib.suppress(OSError):
                target = os.readlink(_OPEN / entry)  # noqa: PTH115 - as above
                if target.startswith("socket:["):
                    sockets[int(entry)] = int(target[8:-1])
                elif target == "anon_inode:[eventpoll]":
                    polls.append(int(entry))
    return sockets, polls


def _watched_by_gloo(poll: int, listening: set[int]) -> set[int]:
    """Return the descriptors that an epoll instance watches if it belongs to a device of gloo, else none.

    A device watches its listening socket and its connections, also while they are being established. It registers each
    with the address of an object. Event loops of Python and of libuv, which torch's store uses, register the descriptor
    itself. Clients, such as those of object stores, have no listening socket.
    """
    with contextlib.suppress(OSError):
        text = (_DETAILS / str(poll)).read_text()
        # Who registers the descriptor sets 32 of the 64 bits.
        watched = {int(own): int(value, 16) & 0xFFFFFFFF for own, value in _WATCHED.findall(text)}
        if not listening.isdisjoint(watched) and all(own != value for own, value in watched.items()):
            return set(watched)
    return set()


@cache
def _names_watched() -> bool:
    """Return whether this kernel names what an epoll instance watches.

    If it does not, every new connection counts as one of the group.
    """
    with select.epoll() as poll, socket.socket() as watched:
        poll.register(watched)
        with contextlib.suppress(OSError):
            return bool(_WATCHED.search((_DETAILS / str(poll.fileno())).read_text()))
    return False


def _ports_of(connection: socket.socket) -> set[int]:
    """Return the ports of both ends; only the own one while the connection is being established."""
    ports = {connection.getsockname()[1]}
    with contextlib.suppress(OSError):
        ports.add(connection.getpeername()[1])
    return ports - {0}


@contextlib.contextmanager
def _same_socket(descriptor: int, inode: int) -> Iterator[socket.socket]:
    """Duplicate a socket by its descriptor. Raises OSError if the descriptor was closed or reused."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        if os.fstat(found.fileno()).st_ino != inode:
            raise OSError(f"descriptor {descriptor} was reused")
        yield found
