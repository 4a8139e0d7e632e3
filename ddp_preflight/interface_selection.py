"""Prediction of the interfaces that NCCL and gloo choose, by their own rules and without calling them.

Sources: NCCL: ``ncclFindInterfaces`` in src/misc/socket.cc of NCCL 2.28. gloo:
``ProcessGroupGloo::createDefaultDevice`` and ``createDeviceForInterface`` in torch 2.13, and ``lookupAddrForIface`` in
gloo/transport/tcp/device.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ddp_preflight.schema import Choice, Resolution
from ddp_trainer.net.network_interfaces import Interface

NCCL_VARIABLE: Final = "NCCL_SOCKET_IFNAME"
GLOO_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
_FAMILY_VARIABLE: Final = "NCCL_SOCKET_FAMILY"

_NCCL_DEFAULT: Final = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")
"""Rules that NCCL tries in turn without a setting; InfiniBand first."""

_LOOPBACK: Final = "127.0.0.1"


def nccl(interfaces: Sequence[Interface], environ: Mapping[str, str]) -> Choice:
    """Return NCCL's first interface, which its bootstrap uses."""
    family = {"AF_INET": 4, "AF_INET6": 6}.get(environ.get(_FAMILY_VARIABLE, ""), 0)
    value = environ.get(NCCL_VARIABLE, "")
    if len(value) > 1:
        for name, address in _matching(value, interfaces, family):
            return Choice(interface=name, address=address, why=f"{NCCL_VARIABLE}={value}")
        suffix = f" with an IPv{family} address" if family else ""
        return Choice(error=f"{NCCL_VARIABLE}={value} matches no interface that is up{suffix}")
    for rule in _NCCL_DEFAULT:
        for name, address in _matching(rule, interfaces, family):
            return Choice(interface=name, address=address, why="its default")
    return Choice(error="NCCL finds no interface with an address")


def _matching(rule: str, interfaces: Sequence[Interface], family: int) -> Iterator[tuple[str, str]]:
    """Yield the addresses that match NCCL's list: prefixes, ``=`` for exact names, ``^`` for all others."""
    is_exclusion = rule.startswith("^")
    rule = rule.removeprefix("^")
    is_exact = rule.startswith("=")
    # NCCL allows a port after a name, for hosts with several HCAs.
    names = [name.partition(":")[0] for name in rule.removeprefix("=").split(",") if name]
    for name, address in _in_kernel_order(interfaces):
        if family and family != (6 if ":" in address else 4):
            continue
        is_listed = any(name == pattern if is_exact else name.startswith(pattern) for pattern in names) or not names
        if is_listed is not is_exclusion and address != "::1":
            yield name, address


def _in_kernel_order(interfaces: Sequence[Interface]) -> Iterator[tuple[str, str]]:
    """Yield all addresses in the order of getifaddrs: the IPv4 addresses of all interfaces, then the IPv6 addresses."""
    for is_v6 in (False, True):
        for interface in interfaces:
            for address in interface.addresses if interface.is_up else ():
                if (":" in address) is is_v6:
                    yield interface.name, address


def gloo(interfaces: Sequence[Interface], hostname: Resolution, environ: Mapping[str, str]) -> Choice:
    """Return the first device of a gloo group."""
    value = environ.get(GLOO_VARIABLE, "")
    if len(value) > 1:
        first = value.split(",")[0]
        for name, address in _in_kernel_order(interfaces):
            if name == first:
                return Choice(interface=name, address=address, why=f"{GLOO_VARIABLE}={value}")
        return Choice(
            error=f"{GLOO_VARIABLE}={value} is not an interface with an address, and gloo takes exact names only"
        )
    why = f"the first address of the host name {hostname.name!r} that is this machine's"
    owners = {address.partition("%")[0]: name for name, address in _in_kernel_order(interfaces)}
    for address in hostname.addresses:
        # All of 127.0.0.0/8 can be bound, though only 127.0.0.1 is listed.
        owner = owners.get(address) or (owners.get(_LOOPBACK) if address.startswith("127.") else None)
        if owner:
            return Choice(interface=owner, address=address, why=why)
    return Choice(
        interface=owners.get(_LOOPBACK, ""),
        address=_LOOPBACK,
        why=f"its fallback, because the host name {hostname.name!r} leads to no address of this machine",
    )
