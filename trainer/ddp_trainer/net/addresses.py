"""Addresses and endpoints as text: what they are, and whether they belong to this machine. Standard library only."""

from __future__ import annotations

import argparse
import ipaddress
import socket


def is_address(text: str) -> bool:
    """Return whether the text is an IP address, with or without a zone, and so needs no resolver."""
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address or ``localhost``. Nodes that meet there are on one machine.

    >>> [is_loopback(host) for host in ("localhost", "127.16.0.1", "::1", "10.0.0.1", "")]
    [True, True, True, False, False]
    """
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback if is_address(host) else host == "localhost"


def is_local_address(address: str) -> bool:
    """Return whether an address belongs to this machine, that is, is a loopback address or can be bound to."""
    if is_loopback(address):
        return True
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def split_endpoint(text: str, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``.

    Raises:
        ValueError: The text is anything else, or the port is above 65535.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text.strip(), str(int(default_port))
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) >= 1 << 16:
        raise ValueError(f"{text!r} is not a host with a port of at most 65535")
    return host, int(port)


def port_argument(text: str) -> int:
    """Return the port of a command line; 0 stands for any free one. Raises ArgumentTypeError for other text."""
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to 65535")
    return int(text)
