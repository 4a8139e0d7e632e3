"""Network endpoints and addresses of this host.

:func:`parse_endpoint` reads the store's ``host[:port]``, in torchrun's format. The other functions classify and resolve
host names for the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from ddp_trainer.common.constants import Env, Port
from ddp_trainer.launch.protocol.errors import LaunchError


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
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text.strip(), str(int(default_port))
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
        raise LaunchError(f"--rdzv-endpoint {text!r} is not host:port, with a port of at most 65535.")
    return Endpoint(host, int(port))


def own_address(environ: Mapping[str, str]) -> str:
    """Return the address in ``DDP_POD_IP``, at which peers reach this node; empty if unset.

    Raises:
        LaunchError: If the value is not an IP address.
    """
    text = environ.get(Env.POD_IP, "")
    try:
        ipaddress.ip_address(text.partition("%")[0] or "::")
    except ValueError:
        told = f"{Env.POD_IP}={text!r} is no address"
        raise LaunchError(f"{told}; set it to one of this machine, or leave it unset.") from None
    return text


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address or ``localhost``. Nodes that meet there are on one machine.

    >>> [is_loopback(host) for host in ("localhost", "127.16.0.1", "::1", "10.0.0.1", "")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


async def addresses_of(host: str, seconds: float) -> list[str]:
    """Return the addresses of ``host`` in the resolver's order; empty if it does not answer within ``seconds``.

    Without a name server, a resolver takes as long as it likes and cannot be cancelled. It therefore runs in a daemon
    thread, which delays neither signals nor the end of this process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def settle(found: list[str]) -> None:
        if not answer.done():
            answer.set_result(found)

    def ask() -> None:
        found: list[str] = []
        with contextlib.suppress(OSError, UnicodeError):
            found = [str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=ask, name="ddp-resolver", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            return await answer
    return []


def is_this_host(host: str) -> bool:
    """Return whether ``host`` names this machine, that is, whether a socket can bind to one of its addresses."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address[0]) for family, _, _, _, address in found)


def _can_bind(family: int, address: str | int) -> bool:
    if not ipaddress.ip_address(str(address).partition("%")[0]).is_loopback:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((str(address), 0))
            except OSError:
                return False
    return True
