"""Selection of the network interface that ranks listen on, by the route to the other nodes.

:func:`select_interface` returns the variables for the workers. A choice of the user takes precedence. gloo takes the
address of the host name. On many machines that is the loopback, and no other node reaches the rank. NCCL takes the
first interface that is neither loopback nor docker's, which may be a link-local one. The kernel's routing table has the
right one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.net.addresses import is_address, is_loopback
from ddp_trainer.net.network_interfaces import Interface, list_interfaces, route_from

EXACT: Final = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables whose value is the plain name of an interface."""
NCCL: Final = "NCCL_SOCKET_IFNAME"
_INNER: Final = ("docker", "virbr", "veth", "cni", "cali", "br-", "tunl", "kube-")
"""Prefixes of interfaces that lead to containers of this machine."""


@dataclass(frozen=True, slots=True)
class InterfaceSettings:
    """Environment variables that select the network interface of the workers."""

    environment: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    """Reason why no interface was selected although one was needed."""


def select_interface(environ: Mapping[str, str], generation: Assignment) -> InterfaceSettings:
    """Return the interface settings for the workers of this node; empty on a single machine.

    Args:
        environ: Environment of the workers. Its own settings are kept.
        generation: Place of this node in its group, with the addresses of some of the other nodes.
    """
    unset = [name for name in (*EXACT, NCCL) if not environ.get(name)]
    known = generation.peer_addresses or (generation.master_address,)
    target = next((address for address in known if is_address(address) and not is_loopback(address)), "")
    if generation.node_count == 1 or EXACT[0] not in unset or not target:
        return InterfaceSettings()
    source = route_from(target)
    if not source:
        return InterfaceSettings(message=_left_unset(f"this machine has no route to {target}"))
    found = _list_interfaces()
    name = next((interface.name for interface in found if source in interface.addresses), "")
    if not name:
        return InterfaceSettings(message=_left_unset(f"no interface has {source}, the address on the way to {target}"))
    chosen: dict[str, str] = dict.fromkeys((variable for variable in EXACT if variable in unset), name)
    # NCCL may use several outward interfaces together. If there is only one, every other interface is wrong.
    if NCCL in unset and [interface.name for interface in found if _is_routable(interface)] == [name]:
        chosen[NCCL] = f"={name}"
    return InterfaceSettings(chosen)


def interface_to(address: str) -> str | None:
    """Return the interface on the route to ``address``; None for a name, a loopback, or an address without a route."""
    source = "" if not is_address(address) or is_loopback(address) else route_from(address)
    return (
        next((interface.name for interface in _list_interfaces() if source in interface.addresses), None)
        if source
        else None
    )


def _list_interfaces() -> Sequence[Interface]:
    try:
        return list_interfaces()
    except OSError:
        return ()


def _is_routable(interface: Interface) -> bool:
    is_global = any(not address.startswith("169.254.") and "%" not in address for address in interface.addresses)
    is_inner = interface.is_loopback or interface.name.startswith(_INNER)
    return interface.is_up and is_global and not is_inner


def _left_unset(why: str) -> str:
    return f"{EXACT[0]} is left unset, since {why}; name the interface that leads to the other nodes."
