"""The interface for ranks to listen on, by the routes and interfaces of this machine."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from ddp_trainer.launch.host.network_interface import interface_to, select_interface
from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.net.network_interfaces import list_interfaces, route_from
from tests.support.launch_simulation import place_of

FAR = "198.51.100.7"
"""An address of documentation: there is a route to it wherever there is a default one."""
NOWHERE = "2001:db8::7"


def place(*addresses: str, of: int = 0, master: str = "10.0.0.1") -> Assignment:
    nodes = tuple(
        Node(token=f"t{rank}", name=f"n{rank}", index=rank, local_world_size=1, role="default", address=address)
        for rank, address in enumerate(addresses)
    )
    return place_of(Generation(number=1, fence=1, nodes=nodes, master_address=master, master_port=29500), f"t{of}")


def test_a_node_alone_and_nodes_of_one_machine_get_no_interface() -> None:
    for addresses in (("10.0.0.1",), ("127.0.0.1", "127.0.0.1"), ("127.16.1.1", "127.16.1.2")):
        selection = select_interface({}, place(*addresses, master=addresses[0]))
        assert (selection.environment, selection.message) == ({}, "")


@pytest.mark.skipif(not route_from(FAR), reason="This machine has no way out.")
def test_the_interface_on_the_route_to_the_others_is_selected() -> None:
    [name] = [interface.name for interface in list_interfaces() if route_from(FAR) in interface.addresses]
    environment = select_interface({}, place("127.0.1.1", FAR)).environment
    assert (environment["GLOO_SOCKET_IFNAME"], environment["TP_SOCKET_IFNAME"]) == (name, name)
    assert environment.get("NCCL_SOCKET_IFNAME", f"={name}") == f"={name}"
    assert interface_to(FAR) == name


@pytest.mark.skipif(bool(route_from(NOWHERE)), reason="This machine has a way to every IPv6 address.")
def test_a_node_without_a_route_has_a_warning() -> None:
    selection = select_interface({}, place("", NOWHERE))
    assert selection.environment == {}
    assert selection.message == (
        f"GLOO_SOCKET_IFNAME is left unset, since this machine has no route to {NOWHERE}; name the interface that "
        "leads to the other nodes."
    )


@pytest.mark.skipif(not route_from(FAR), reason="This machine has no way out.")
@pytest.mark.parametrize("rank", [0, 1])
def test_in_a_static_group_the_route_to_rank_0_decides(rank: int) -> None:
    static = place("", "", of=rank, master="first.example.com")
    for addressed in (place("", "", of=rank, master=FAR), replace(static, peer_addresses=(FAR,))):
        assert select_interface({}, addressed).environment["GLOO_SOCKET_IFNAME"] == interface_to(FAR)


def test_a_name_is_not_looked_up_where_the_group_starts() -> None:
    assert select_interface({}, place("", "", of=1, master="localhost")) == select_interface({}, place(""))


def test_a_name_and_the_loopback_have_no_interface() -> None:
    assert (interface_to("digits-store"), interface_to("127.0.0.1"), interface_to("")) == (None, None, None)
    assert {name for _, name in socket.if_nameindex()} >= {interface.name for interface in list_interfaces()}
