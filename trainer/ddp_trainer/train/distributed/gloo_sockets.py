"""Network connections of a gloo process group, which another thread can shut down to abort collectives.

gloo has no way to abort a collective: if a peer does not respond, the collective waits for its timeout. Shutting down a
connection on either side immediately ends every wait on it, also on the peer. :class:`GlooSockets` finds the
connections of a group.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_OPEN = Path("/proc/self/fd")


class GlooSockets:
    """Connections opened between :meth:`__init__` and :meth:`complete`, or inside :meth:`more`."""

    def __init__(self) -> None:
        self._before = _list_sockets()
        self._mine: set[tuple[int, int]] | None = None
        self.are_called_off = False
        """True if the connections were cut from outside of training: a rank of the group is lost or about to leave."""

    def complete(self) -> None:
        """Record the connections of the group, after all of them are open."""
        self._mine = _list_sockets() - self._before

    @contextlib.contextmanager
    def more(self) -> Iterator[None]:
        """Add the connections opened inside the context, such as those of subgroups."""
        known = self._mine or set()
        self._before, self._mine = _list_sockets() - known, None
        try:
            yield
        finally:
            self.complete()

    def call_off(self) -> None:
        """Cut the connections from another thread while training runs, and set :attr:`are_called_off`."""
        self.are_called_off = True
        self.cut()

    def cut(self) -> None:
        """Shut down the connections. Any thread may call this, also before :meth:`complete`."""
        for descriptor, inode in _list_sockets() - self._before if self._mine is None else self._mine:
            with contextlib.suppress(OSError):
                _shutdown_socket(descriptor, inode)


def _list_sockets() -> set[tuple[int, int]]:
    """Return (descriptor, inode) of every socket of this process."""
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):  # not on Linux
        for entry in os.listdir(_OPEN):  # noqa: PTH208 - three times as fast as pathlib
            with contextlib.suppress(OSError):
                target = os.readlink(_OPEN / entry)  # noqa: PTH115 - as above
                if target.startswith("socket:["):
                    found.add((int(entry), int(target[8:-1])))
    return found


def _shutdown_socket(descriptor: int, inode: int) -> None:
    """Shut down a network connection, unless its descriptor number was reused. Raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        is_network = connection.family in {socket.AF_INET, socket.AF_INET6}
        # Listening sockets are skipped: no collective waits on them, and gloo ends the process when accept() fails.
        is_listening = bool(is_network and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if is_network and not is_listening and os.fstat(connection.fileno()).st_ino == inode:
            connection.shutdown(socket.SHUT_RDWR)
