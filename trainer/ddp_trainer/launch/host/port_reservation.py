"""Reservation of a free port for rank 0, before it is known whether this node hosts rank 0.

:class:`ReservedPort` holds the port.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class ReservedPort:
    """Port that no other process on this host receives, while rank 0 may still listen on it.

    The socket is bound but does not listen. It has SO_REUSEADDR, as the socket of torch's TCPStore, so the kernel lets
    the second socket listen. The kernel gives the port to no other process while a worker imports torch, which takes
    seconds.

    A port is held for a whole generation, and every generation has a new one. No rank can therefore connect to the
    store of a dead attempt.
    """

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        self._socket = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if dual:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self._socket.bind(("", 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Release the port."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
