"""Ports for servers that a test starts later, or again."""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Final

PORTS: Final = range(20_000, 28_500)
"""Below the port of the stores of local jobs, and below the default of kernels for connections: such a one would come
in between, or, on a loopback, meet itself."""


def free_port() -> int:
    """Return a port without a listener."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            return port
