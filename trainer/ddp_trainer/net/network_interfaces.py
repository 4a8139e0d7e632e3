"""Network interfaces of this machine, from the libc call that NCCL and gloo use, and the route to other machines.

:func:`list_interfaces` and :func:`route_from` are the entry points.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_IFF_UP: Final = 0x1
_IFF_LOOPBACK: Final = 0x8
_IFF_RUNNING: Final = 0x40


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface."""

    name: str
    is_up: bool
    """True if the interface is up and running: it has a carrier."""
    is_loopback: bool
    mtu: int
    addresses: tuple[str, ...]
    """Addresses in the kernel's order, IPv4 first. NCCL and gloo use the same order."""


class _Sockaddr(ctypes.Structure):
    """Common header of socket addresses, with room for the longest address that is read here."""

    _fields_ = (("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26))


class _Ifaddrs(ctypes.Structure):
    pass


_Ifaddrs._fields_ = (  # it refers to itself
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.POINTER(_Sockaddr)),
    ("netmask", ctypes.c_void_p),
    ("destination", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def list_interfaces() -> tuple[Interface, ...]:
    """Return all interfaces in the kernel's order, link-local addresses with their zone.

    Raises:
        OSError: If the kernel does not list them.
    """
    flags: dict[str, int] = {}
    addresses: dict[str, list[str]] = {}
    with _getifaddrs() as entries:
        for entry in entries:
            name = entry.name.decode()
            flags[name] = entry.flags
            found = addresses.setdefault(name, [])
            if entry.addr and (address := _address(entry.addr.contents, name)):
                found.append(address)
    return tuple(
        Interface(
            name=name,
            is_up=bool(flags[name] & _IFF_UP and flags[name] & _IFF_RUNNING),
            is_loopback=bool(flags[name] & _IFF_LOOPBACK),
            mtu=_read_mtu(name),
            addresses=tuple(found),
        )
        for name, found in addresses.items()
    )


@contextmanager
def _getifaddrs() -> Iterator[Iterator[Any]]:
    libc = ctypes.CDLL(None, use_errno=True)
    head = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(head)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    try:
        yield _entries(head)
    finally:
        libc.freeifaddrs(head)


def _entries(entry: Any) -> Iterator[Any]:
    while entry:
        yield entry.contents
        entry = entry.contents.next


def _address(sockaddr: _Sockaddr, interface: str) -> str:
    data = bytes(sockaddr.data)
    if sockaddr.family == socket.AF_INET:
        return str(ipaddress.IPv4Address(data[2:6]))
    if sockaddr.family == socket.AF_INET6:
        address = ipaddress.IPv6Address(data[6:22])
        return f"{address}%{interface}" if address.is_link_local else str(address)
    return ""


def _read_mtu(name: str) -> int:
    try:
        return int(Path(f"/sys/class/net/{name}/mtu").read_text())
    except (OSError, ValueError):
        return 0


def route_from(address: str) -> str:
    """Return the local address from which the kernel routes packets to ``address``; empty without a route.

    No packet is sent.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""
