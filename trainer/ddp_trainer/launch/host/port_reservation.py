"""Reservation of a free port for rank 0, before it is known whether this node hosts rank 0."""

from __future__ import annotations

import socket


def reserve_port(port: int = 0) -> socket.socket:
    """Return a socket whose port no other process on this host receives, while rank 0 may still listen on it.

    The socket is bound but does not listen. It has SO_REUSEADDR, as the socket of torch's TCPStore, so the kernel lets
    the second socket listen. The kernel gives the port to no other process while a worker imports torch, which takes
    seconds.

    A port is held for a whole generation, and every generation has a new one, unless the user has named one. No rank
    can therefore connect to the store of a dead attempt.

    Args:
        port: Port that the user has named; 0 for any.

    Raises:
        OSError: The port is in use.
    """
    dual = socket.has_dualstack_ipv6()
    reserved = socket.socket(socket.AF_INET6 if dual else socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if dual:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.bind(("", port))
    except OSError:
        reserved.close()
        raise
    return reserved
