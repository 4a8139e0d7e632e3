"""The aggregator as a process: how it starts, how it ends, and what it takes from its clients."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.local.metrics_processes import DEADLINE_SECONDS, Rank, aggregate, aggregator, announced_port


def test_it_ends_on_sigterm_with_exit_code_0(tmp_path: Path) -> None:
    with aggregator(tmp_path) as running:
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(DEADLINE_SECONDS) == 0


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
        done = subprocess.run(
            aggregate(tmp_path, "--address", "127.0.0.1", "--port", str(port)),
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"aggregate: port {port} of 127.0.0.1 is in use, so this pod has no metrics, and training goes on: "
        "choose another with --port or $DDP_METRICS_PORT.\n"
    )


def test_it_takes_over_the_port_of_the_one_before(tmp_path: Path) -> None:
    """A launcher that is started again starts an aggregator before the former one has noticed its end."""
    with aggregator(tmp_path) as former, aggregator_waiting_for(former.port, tmp_path) as successor:
        assert former.process.poll() is None
        former.process.terminate()
        assert announced_port(successor) == former.port
        successor.kill()


def aggregator_waiting_for(port: int, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        aggregate(directory, "--address", "127.0.0.1", "--port", str(port)), stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--address", "203.0.113.7", "--port", "0"], "give an address of this host with --address"),
        (["--address", "no.such.host.invalid", "--port", "0"], "give an address of this host with --address"),
    ],
)
def test_an_address_that_is_not_here_is_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    done = subprocess.run(aggregate(tmp_path, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_idle_clients_do_not_keep_a_scrape_out(tmp_path: Path) -> None:
    with aggregator(tmp_path) as running, Rank(tmp_path, 0) as rank:
        rank.tell("step 2")
        idle = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(200)]
        for client in idle[::2]:
            client.sendall(b"GET /metr")
        assert running.scrape().value("ddp_steps_total", rank="0") == 2
        for client in idle:
            client.close()


def resident_kib(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1])


def test_hostile_clients_cost_the_pod_neither_its_metrics_nor_its_memory(tmp_path: Path) -> None:
    """Requests without an end, requests one after another on many connections, and answers that nobody reads."""
    with aggregator(tmp_path) as running, Rank(tmp_path, 0) as rank, contextlib.ExitStack() as crowd:
        rank.tell("step 2")
        running.scrape()
        before = resident_kib(running.process.pid)
        for _ in range(20):
            client = socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE_SECONDS)
            with client, contextlib.suppress(ConnectionError):
                client.sendall(b"GET /" + b"x" * (8 << 20))
        for _ in range(150):
            client = crowd.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n" * 20)
        assert running.scrape().value("ddp_steps_total", rank="0") == 2
        assert resident_kib(running.process.pid) - before < 32 << 10
        rank.tell("step 1")
        running.scrape_until(lambda scrape: scrape.value("ddp_steps_total", rank="0") == 3)


def test_every_address_means_ipv4_too(tmp_path: Path) -> None:
    with subprocess.Popen(aggregate(tmp_path, "--port", "0"), stderr=subprocess.PIPE, text=True) as process:
        port = announced_port(process)
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS).close()
        process.kill()


def test_when_the_run_is_over_a_regular_scraper_is_waited_for_and_nobody_else(tmp_path: Path) -> None:
    with aggregator(tmp_path) as running:
        running.scrape()
        running.process.send_signal(signal.SIGUSR1)
        assert running.process.wait(DEADLINE_SECONDS) == 0, "only a person has looked"
    with aggregator(tmp_path) as running:
        address = f"http://127.0.0.1:{running.port}/metrics"
        as_prometheus = urllib.request.Request(address, headers={"User-Agent": "Prometheus/3.5.0"})
        for pause in (1.5, 0.0):
            urllib.request.urlopen(as_prometheus, timeout=2).close()
            time.sleep(pause)  # the interval is what it has to learn
        running.process.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            running.process.wait(1.0)
        with urllib.request.urlopen(as_prometheus, timeout=2) as answer:
            assert b"ddp_exporter_scrapes_total" in answer.read()
        assert running.process.wait(DEADLINE_SECONDS) == 0
