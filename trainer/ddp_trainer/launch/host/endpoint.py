"""Network endpoints, addresses and ports of this host.

:func:`parse_endpoint` reads the store's ``host[:port]``, in torchrun's format. :func:`reserve_port` reserves a port for
rank 0, before it is known whether this node hosts rank 0. The other functions resolve host names for the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ddp_trainer.common.constants import Env, Port
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.net.addresses import is_address, is_local_address, split_endpoint
from ddp_trainer.net.asyncio_utils import run_in_daemon_thread


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host name or address, and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return the endpoint in command line format."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, default_port: int = Port.RENDEZVOUS) -> Endpoint:
    """Parse ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``. Raises LaunchError for anything else.

    >>> parse_endpoint("digits-store"), parse_endpoint("[::1]:29500").port
    (Endpoint(host='digits-store', port=29400), 29500)
    """
    try:
        return Endpoint(*split_endpoint(text, default_port))
    except ValueError:
        raise LaunchError(f"--rdzv-endpoint {text!r} is not host:port, with a port of at most 65535.") from None


def pod_address(environ: Mapping[str, str]) -> str:
    """Return the address in ``DDP_POD_IP``, at which peers reach this node; empty if unset.

    Raises:
        LaunchError: If the value is not an IP address.
    """
    text = environ.get(Env.POD_IP, "")
    if text and not is_address(text):
        problem = f"{Env.POD_IP}={text!r} is not an address"
        raise LaunchError(f"{problem}; set it to one of this machine, or leave it unset.")
    return text


async def addresses_of(host: str, seconds: float) -> list[str]:
    """Return the addresses of ``host`` in the resolver's order; empty if it does not answer within ``seconds``.

    Without a name server, a resolver takes as long as it likes and cannot be cancelled. It therefore runs in a daemon
    thread.
    """
    answer = run_in_daemon_thread(partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM))
    with contextlib.suppress(OSError, UnicodeError):
        async with asyncio.timeout(seconds):
            return [str(address[0]) for *_, address in await asyncio.wrap_future(answer)]
    return []


def is_this_host(host: str) -> bool:
    """Return whether ``host`` names this machine, that is, whether a socket can bind to one of its addresses."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(is_local_address(str(address[0])) for *_, address in found)


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
