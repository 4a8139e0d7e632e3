"""Ranks on two network stacks whose own names lead to the loopback, as Debian's installer writes them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.local.launch.preflight_namespaces import IPV4, PORT, Side, needs_namespaces, pair

pytestmark = needs_namespaces

SUM = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
interfaces = [os.environ.get(f"{library}_SOCKET_IFNAME") for library in ("GLOO", "TP", "NCCL")]
os.write(1, f"{total.item():g} {interfaces}\\n".encode())
dist.destroy_process_group()
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    with pair(tmp_path) as sides:
        for side in sides:
            side.knows(**{f"node-{side.name}": "127.0.1.1"})
        yield sides


def launch(sides: tuple[Side, Side], script: Path, environment: dict[str, str]) -> list[tuple[int, str, str]]:
    flags = ["launch", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{IPV4['a']}:{PORT}"]
    command = [sys.executable, "-m", "ddp_trainer", *flags, "--max-restarts", "0", str(script)]
    agents = [side.start(*command, environment=environment) for side in sides]
    outputs = [agent.communicate(timeout=150) for agent in agents]
    return [(agent.returncode, out, err) for agent, (out, err) in zip(agents, outputs, strict=True)]


def test_ranks_listen_on_the_interface_that_leads_to_the_others(nodes: tuple[Side, Side], tmp_path: Path) -> None:
    _, b = nodes
    b.sh("ip link add docker0 type veth peer name other; ip addr add 172.17.0.1/16 dev docker0")
    b.sh("ip link set other up; ip link set docker0 up")
    script = tmp_path / "sum.py"
    script.write_text(SUM)
    done = launch(nodes, script, {})
    assert [code for code, *_ in done] == [0, 0], done
    assert [out for _, out, _ in done] == ["2 ['eth0', 'eth0', '=eth0']\n"] * 2


def test_an_interface_that_somebody_named_is_used_and_doubted(nodes: tuple[Side, Side], tmp_path: Path) -> None:
    for side in nodes:
        side.sh("ip link add decoy0 type veth peer name other")
    script = tmp_path / "interface.py"
    script.write_text("import os; print(os.environ['GLOO_SOCKET_IFNAME'], 'TP_SOCKET_IFNAME' in os.environ)")
    done = launch(nodes, script, {"GLOO_SOCKET_IFNAME": "decoy0"})
    assert [(code, out) for code, out, _ in done] == [(0, "decoy0 False\n")] * 2
    for _, _, err in done:
        assert "warning T23: GLOO_SOCKET_IFNAME=decoy0, and the way to the other nodes is by" in err
