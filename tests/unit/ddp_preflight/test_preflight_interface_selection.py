"""The interface that NCCL and gloo select, by their documented rules."""

import pytest

from ddp_preflight import interface_selection
from ddp_preflight.schema import Resolution
from tests.support.preflight_reports import LOOPBACK, ethernet

MANY = (
    LOOPBACK,
    ethernet("172.17.0.1", name="docker0"),
    ethernet("fe80::1%eth0", "10.0.0.5", "fd00::5", name="eth0"),
    ethernet("10.1.0.5", name="eth10"),
    ethernet("10.2.0.5", name="down0", is_up=False),
)


@pytest.mark.parametrize(
    ("environ", "interface", "address"),
    [
        ({}, "eth0", "10.0.0.5"),
        ({"NCCL_SOCKET_IFNAME": "eth1"}, "eth10", "10.1.0.5"),
        ({"NCCL_SOCKET_IFNAME": "=eth10,eth0"}, "eth0", "10.0.0.5"),
        ({"NCCL_SOCKET_IFNAME": "^eth"}, "lo", "127.0.0.1"),
        ({"NCCL_SOCKET_IFNAME": "^lo,eth"}, "docker0", "172.17.0.1"),
        ({"NCCL_SOCKET_IFNAME": "^=lo,docker0,eth0"}, "eth10", "10.1.0.5"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "eth0", "fe80::1%eth0"),
        ({"NCCL_SOCKET_IFNAME": "x"}, "eth0", "10.0.0.5"),
    ],
)
def test_nccl_takes_the_first_that_its_list_lets_through(environ: dict[str, str], interface: str, address: str) -> None:
    chosen = interface_selection.nccl(MANY, environ)
    assert (chosen.interface, chosen.address, chosen.error) == (interface, address, "")


def test_nccl_prefers_infiniband_and_falls_back_to_docker_and_loopback() -> None:
    assert interface_selection.nccl((*MANY, ethernet("10.8.0.1", name="ib0")), {}).interface == "ib0"
    assert interface_selection.nccl(MANY[:2], {}).interface == "docker0"
    assert interface_selection.nccl(MANY[:1], {}).interface == "lo"
    assert interface_selection.nccl((), {}).error == "NCCL finds no interface with an address"


@pytest.mark.parametrize("variable", ["=eth", "eth9", "down0"])
def test_a_list_of_nccl_that_matches_nothing_is_an_error(variable: str) -> None:
    chosen = interface_selection.nccl(MANY, {"NCCL_SOCKET_IFNAME": variable})
    assert chosen.error == f"NCCL_SOCKET_IFNAME={variable} matches no interface that is up"


def test_gloo_takes_the_first_address_of_the_host_name_that_is_here() -> None:
    hostname = Resolution(name="node", addresses=("192.0.2.1", "10.1.0.5", "10.0.0.5"))
    assert interface_selection.gloo(MANY, hostname, {}).interface == "eth10"


def test_gloo_listens_on_loopback_where_the_host_name_leads_there_or_nowhere() -> None:
    selected = interface_selection.gloo(MANY, Resolution(name="node", addresses=("127.0.1.1",)), {})
    assert (selected.interface, selected.address) == ("lo", "127.0.1.1")
    nowhere = interface_selection.gloo(MANY, Resolution(name="node", error="unknown"), {})
    assert nowhere.address == "127.0.0.1"
    assert nowhere.why == "its fallback, because the host name 'node' leads to no address of this machine"


def test_gloo_takes_exact_names_alone() -> None:
    hostname = Resolution(name="node", addresses=("10.0.0.5",))
    assert interface_selection.gloo(MANY, hostname, {"GLOO_SOCKET_IFNAME": "eth10,eth0"}).address == "10.1.0.5"
    assert "exact names only" in interface_selection.gloo(MANY, hostname, {"GLOO_SOCKET_IFNAME": "eth"}).error
