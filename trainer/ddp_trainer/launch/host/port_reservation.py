"""A free port for rank 0, chosen before it is known whether rank 0 will be here."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Self


class HeldPort:
    """A port nobody else on this host is given, while rank 0 may still listen on it.

    Bound but not listening, with SO_REUSEADDR, as torch's TCPStore binds too: the kernel lets the second socket
    listen, and hands the port to no one else in the seconds a worker takes to import torch. It is held for a whole
    generation, and every generation has a new one, so no rank can meet the store of a dead attempt.
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
        """Give the port up."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
