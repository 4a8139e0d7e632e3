"""The network connections that a process group opens, so that whoever waits on one of them can be woken.

gloo has no way to abort a collective: one whose peer is silent waits for its timeout. But a connection that is shut
down, on either side, ends every wait on it at once, and lets the peers know.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_OPEN = Path("/proc/self/fd")


class GlooSockets:
    """Those that are opened between :meth:`__init__` and :meth:`complete`, and by what is met later: :meth:`more`."""

    def __init__(self) -> None:
        self._before = _sockets()
        self._mine: set[tuple[int, int]] | None = None
        self.are_called_off = False
        """Somebody else than this rank's own training has cut them: a rank of the group is gone, or is about to be."""

    def complete(self) -> None:
        """The group has them all."""
        self._mine = _sockets() - self._before

    @contextlib.contextmanager
    def more(self) -> Iterator[None]:
        """What is opened inside belongs to the group too, as that of groups of some of its ranks."""
        known = self._mine or set()
        self._before, self._mine = _sockets() - known, None
        try:
            yield
        finally:
            self.complete()

    def call_off(self) -> None:
        """Cut them while training goes on, which may wait for something else just now; from another thread."""
        self.are_called_off = True
        self.cut()

    def cut(self) -> None:
        """Shut them down; from any thread, at any time, also while they are being opened."""
        for descriptor, inode in _sockets() - self._before if self._mine is None else self._mine:
            with contextlib.suppress(OSError):
                _shut_down(descriptor, inode)


def _sockets() -> set[tuple[int, int]]:
    """Descriptor and inode of every socket of this process."""
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(OSError):  # no Linux
        for entry in os.listdir(_OPEN):  # noqa: PTH208 - a third of the time of pathlib's
            with contextlib.suppress(OSError):
                target = os.readlink(_OPEN / entry)  # noqa: PTH115 - as above
                if target.startswith("socket:["):
                    found.add((int(entry), int(target[8:-1])))
    return found


def _shut_down(descriptor: int, inode: int) -> None:
    """Unless the number has been given to something else since. Raises OSError."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        is_network = connection.family in {socket.AF_INET, socket.AF_INET6}
        # Nobody waits on a listening one, and gloo ends the process when accepting fails.
        is_listening = bool(is_network and connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if is_network and not is_listening and os.fstat(connection.fileno()).st_ino == inode:
            connection.shutdown(socket.SHUT_RDWR)
