"""Listening sockets of HTTP servers, in the pod and in the controller: :func:`listen`. Standard library only."""

from __future__ import annotations

import errno
import socket


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        address: Address of this host; empty for all, with IPv6 and IPv4 where both exist.
        port: Port number; 0 for any free one.

    Raises:
        OSError: The address or port cannot be used.
    """
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                raise
    return socket.create_server(("", port))
