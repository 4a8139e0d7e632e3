"""Faults of a network, one at a time, between two nodes with a network stack each: preflight names each of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.launch.preflight_namespaces import IPV4, IPV6, PORT, Side, both, needs_namespaces, pair

pytestmark = needs_namespaces


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with pair(tmp_path) as sides:
        yield sides


def test_two_nodes_without_fault_are_fit(nodes: tuple[Side, Side]) -> None:
    first, second = both(*nodes)
    assert first.failing() == second.failing() == set()
    assert (first.code, second.code) == (0, 0)
    assert first.document == second.document


def test_ports_that_a_firewall_drops_are_named(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    b.block(f"iifname eth0 tcp flags & (syn|ack) == syn tcp dport != {PORT} drop")
    first, second = both(a, b)
    assert (first.code, second.code) == (1, 1)
    assert first.failing() == second.failing() == {"random-port"}
    assert f"node-b: {IPV4['b']}:" in second.message("random-port")
    assert "cannot be reached from node-a (timed out); a firewall, NetworkPolicy" in second.message("random-port")


def test_a_rendezvous_port_that_is_rejected_is_named_on_both_sides(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    a.block(f"iifname eth0 tcp dport {PORT} reject with tcp reset")
    first, second = both(a, b, timeout=1.5)
    assert (first.code, second.code) == (1, 1)
    assert "came in time: node-a; node rank 1 did not" in first.message("meeting")
    assert f"not met at port {PORT}: first.example.com" in second.message("meeting")
    assert f"{IPV4['a']} refused; start preflight on the first node too; if it runs, a firewall" in second.message(
        "meeting"
    )


def test_a_meeting_place_by_address_shows_the_wrong_name_on_both_sides(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    b.knows(**{"node-a": IPV4["a"], "node-b": IPV4["b"], "first.example.com": "10.213.77.99"})
    first, second = both(a, b, "--meet", f"{IPV4['a']}:{PORT}")
    assert first.failing() == second.failing() == {"endpoint-name", "rendezvous-port"}
    assert (
        "node-b: first.example.com leads to 10.213.77.99 by /etc/hosts (10.213.77.99 first.example.com), elsewhere"
        in first.message("endpoint-name")
    )
    assert f"lead to {IPV4['a']} here: mend /etc/hosts" in first.message("endpoint-name")


def test_an_interface_that_leads_nowhere_is_named(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    b.sh("ip link add decoy0 type veth peer name other; ip link set other up; ip link set decoy0 up")
    b.sh("ip addr add 10.9.9.9/24 dev decoy0; timeout 5 sh -c 'until ip link show decoy0 | grep -q UP,; do :; done'")
    first, second = both(a, b, environment={"GLOO_SOCKET_IFNAME": "decoy0"})
    assert first.failing() == second.failing() == {"interface"}
    sentence = "node-b: gloo would listen on 10.9.9.9 (decoy0), by GLOO_SOCKET_IFNAME=decoy0, which cannot"
    assert sentence in first.message("interface")
    assert "eth0 on this node" in first.message("interface")


def test_a_host_name_that_leads_to_loopback_is_named_for_gloo(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    b.knows(**{"node-b": "127.0.1.1", "first.example.com": IPV4["a"]})
    first, _ = both(a, b)
    assert first.failing() == {"interface"}
    assert "node-b: gloo would listen on 127.0.1.1 (lo), by the first address" in first.message("interface")
    assert "export GLOO_SOCKET_IFNAME=eth0" in first.message("interface")


def test_ipv6_on_one_side_that_gloo_would_use_is_named(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    a.sh(f"ip addr add {IPV6['a']}/64 dev eth0 nodad")
    a.knows(**{"node-a": IPV6["a"], "first.example.com": IPV4["a"]})
    first, second = both(a, b)
    assert first.failing() == second.failing() == {"address-family", "interface"}
    assert "node-b: no IPv6 here, while node-a has it; gloo would use IPv6 on node-a, IPv4 on node-b" in first.message(
        "address-family"
    )


def test_a_node_with_ipv6_alone_says_that_it_has_no_way_to_an_ipv4_endpoint(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    b.sh(f"ip addr flush dev eth0; ip addr add {IPV6['b']}/64 dev eth0 nodad")
    first, second = both(a, b, timeout=2)
    assert "node rank 1 did not" in first.message("meeting")
    assert "the endpoint first.example.com has IPv4 only, this node has IPv6 only" in second.message("address-family")
    assert f"{IPV4['a']} no route" in second.message("meeting")


SKEWED = """
import sys, time
real = time.time
time.time = lambda: real() + 90
from ddp_trainer.__main__ import main
sys.exit(main())
"""


def test_a_clock_that_is_ahead_is_named(nodes: tuple[Side, Side]) -> None:
    first, second = both(*nodes, b_python=[sys.executable, "-c", SKEWED])
    assert first.failing() == second.failing() == {"clock"}
    assert "node-b: the clock is 90.0" in first.message("clock")
    assert "s ahead of the first node's" in first.message("clock")


OTHER_SERVER = f"""
import socketserver
class Rude(socketserver.BaseRequestHandler):
    def handle(self): self.request.sendall(b"HTTP/1.1 400 Bad Request\\r\\n")
server = socketserver.TCPServer(("", {PORT}), Rude)
print("up", flush=True)
server.serve_forever()
"""


def test_a_rendezvous_port_that_is_taken_is_named_with_its_holder(nodes: tuple[Side, Side]) -> None:
    a, b = nodes
    server = a.start(sys.executable, "-c", OTHER_SERVER)
    assert server.stdout
    server.stdout.readline()
    first, second = both(a, b, timeout=2)
    assert f"this node cannot host the meeting: port {PORT} is taken by process {server.pid} (python" in first.message(
        "meeting"
    )
    assert f"{IPV4['a']} stranger; another program" in second.message("meeting")
