"""The aggregator as a process: how it starts, how it ends, and what it takes from its clients."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.metrics.serve.server import LINES_PER_MINUTE, MOST_CONNECTIONS
from ddp_trainer.net.network_interfaces import list_interfaces
from tests.support.metrics_processes import (
    DEADLINE_SECONDS,
    Aggregator,
    Rank,
    aggregate,
    aggregator,
    announced_port,
    started,
)
from tests.support.programs import captured


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    """The write end of the pipe lives as long as the aggregator, so that the end of file is its end."""
    starts_one = (
        "import subprocess, sys; "
        f"subprocess.Popen({aggregate(tmp_path, '--port', '0', '--address', '127.0.0.1')!r}); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starts_one], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        announced_port(parent)
        parent.kill()
        assert parent.stderr is not None
        assert parent.stderr.read() == ""


def test_a_taken_port_is_one_sentence_with_the_port_and_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = captured(aggregate(tmp_path, "--address", "127.0.0.1", "--port", str(port)))
    assert done.returncode == 1
    assert done.stderr == (
        f"aggregate: port {port} of 127.0.0.1 is in use, so this pod has no metrics; training continues: "
        "choose another with --port or $DDP_METRICS_PORT.\n"
    )


def test_it_takes_over_the_port_of_the_one_before(tmp_path: Path) -> None:
    """A launcher that is started again starts an aggregator before the former one has noticed its end."""
    with aggregator(tmp_path) as former:
        same_port = aggregate(tmp_path, "--address", "127.0.0.1", "--port", str(former.port))
        with started(same_port) as successor:
            assert former.process.poll() is None
            former.process.terminate()
            assert announced_port(successor) == former.port


def test_an_address_that_is_not_here_is_one_sentence(tmp_path: Path) -> None:
    command = aggregate(tmp_path, "--address", "203.0.113.7", "--port", "0")
    done = captured(command)
    assert done.returncode == 1
    assert "give an address of this host with --address" in done.stderr
    assert done.stderr.count("\n") == 1


def sockets(pid: int) -> int:
    """The number of open sockets. Files come and go: the aggregator reads the boards of ranks meanwhile."""
    found = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(descriptor.readlink()).startswith("socket:")
    return found


def test_1500_clients_hold_64_connections_under_256_descriptors_and_128_mib(tmp_path: Path) -> None:
    limits = f"ulimit -n 256; ulimit -d {128 << 10}; exec "
    command = ["sh", "-c", limits + '"$@"', "sh", *aggregate(tmp_path, "--port", "0", "--address", "127.0.0.1")]
    with Rank(tmp_path, 0) as rank, contextlib.ExitStack() as crowd, started(command) as process:
        rank.tell("step 2")
        running = Aggregator(process, announced_port(process))
        running.scrape()
        idle, most = sockets(process.pid), 0
        for number in range(1500):
            address = ("127.0.0.1", running.port)
            client = crowd.enter_context(socket.create_connection(address, timeout=DEADLINE_SECONDS))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /metrics" if number % 2 else b"x" * (1 << 16))
            most = max(most, sockets(process.pid) - idle)
        # The crowd may fill the queue of connections, where the kernel tries again after 1, 3 and 7 seconds.
        assert running.scrape(seconds=DEADLINE_SECONDS).value("ddp_steps_total", rank="0") == 2
        assert 1 < most <= MOST_CONNECTIONS
        process.terminate()
        assert process.stderr is not None
        assert len(process.stderr.read().splitlines()) <= LINES_PER_MINUTE + 1


def own_address() -> str:
    """An address of this machine that is not the loopback."""
    found = [
        address
        for one in list_interfaces()
        if one.is_up and not one.is_loopback
        for address in one.addresses
        if "." in address
    ]
    if not found:
        pytest.skip("this machine has no address but the loopback")
    return found[0]


def without_places() -> dict[str, str]:
    """This environment, as outside a pod."""
    names = ("DDP_METRICS_ADDRESS", "DDP_POD_IP", "KUBERNETES_SERVICE_HOST")
    return {name: value for name, value in os.environ.items() if name not in names}


@pytest.mark.parametrize("variables", [{"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"DDP_METRICS_ADDRESS": "0.0.0.0"}])
def test_in_a_pod_or_where_it_is_told_so_it_listens_on_every_address(tmp_path: Path, variables: dict[str, str]) -> None:
    command = aggregate(tmp_path, "--port", "0")
    with started(command, without_places() | variables) as process:
        port = announced_port(process)
        for address in ("127.0.0.1", own_address()):
            socket.create_connection((address, port), timeout=DEADLINE_SECONDS).close()


def test_outside_of_pods_only_this_machine_reaches_it(tmp_path: Path) -> None:
    command = aggregate(tmp_path, "--port", "0")
    with started(command, without_places()) as process:
        port = announced_port(process)
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own_address(), port), timeout=DEADLINE_SECONDS)
