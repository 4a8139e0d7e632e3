"""Strangers at the store of a run: without its secret they cannot join, end, delay or crash it."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.messages import KEY_PURPOSE, VERSION, Hello, Join, Leave, Policy, WorkerState, encode
from ddp_trainer.net.handshake import ClientHandshake
from ddp_trainer.net.run_secret import RunSecret, read_run_secret
from tests.support.launch_harness import LOOP, STORE, Stage


def hello(name: str = "worker-0", token: str = "stranger") -> Hello:
    node = Node(token=token, name=name, index=0, local_world_size=1, address="127.0.0.1")
    policy = Policy(min_nodes=1, max_nodes=2, max_restarts=0)
    return Hello(version=VERSION, run_id="run", node=node, policy=policy, standing=WorkerState.IDLE)


OPEN: list[Stranger] = []


@pytest.fixture(autouse=True)
def _close_strangers() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Stranger:
    """A TCP connection to the store."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.lines = self.socket.makefile("rb")
        OPEN.append(self)

    def close(self) -> None:
        self.lines.close()
        self.socket.close()

    def send(self, *lines: bytes) -> None:
        self.socket.sendall(b"".join(lines))

    def authenticate(self, secret: RunSecret) -> None:
        handshake = ClientHandshake(secret.key(KEY_PURPOSE), VERSION)
        self.send(handshake.first_message)
        self.send(handshake.respond(self.lines.readline()))

    def is_closed(self) -> bool:
        """Wait until the store closes the connection; return whether it sent nothing more."""
        with contextlib.suppress(ConnectionResetError):
            return self.lines.read() == b""
        return True


def run_of_two(stage: Stage) -> list[str]:
    """Two agents that run until the test ends them; their output must show one undisturbed generation."""
    program = [stage.script(LOOP), stage.done()]
    agents = [stage.agent(index, *program) for index in (0, 1)]
    for agent in agents:
        agent.line(r"rank=\d generation=1 world=2 .* runs")
    stage.agents = agents  # type: ignore[attr-defined]
    return program


def ends_well(stage: Stage) -> None:
    stage.finish()
    for agent in stage.agents:  # type: ignore[attr-defined]
        assert agent.code() == 0, agent.output
        assert "generation=2" not in agent.output


def test_whoever_does_not_authenticate_is_not_heard(stage: Stage) -> None:
    store = stage.store()
    run_of_two(stage)
    impostor = ClientHandshake(RunSecret.random().key(KEY_PURPOSE), VERSION)
    attempts = [
        [encode(hello()), encode(Join(port=1))],
        [encode(Leave())],
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"\x16\x03\x01" + b"\xff" * 300 + b"\n"],
        [b"x" * 100_000],
        [impostor.first_message, b'{"is":"proof","proof":"' + b"0" * 64 + b'"}\n', encode(hello())],
        [ClientHandshake(b"", VERSION + 1).first_message],
    ]
    for attempt in attempts:
        stranger = Stranger(stage.port)
        with contextlib.suppress(ConnectionError):
            stranger.send(*attempt)
        assert b"run" not in b"".join(stranger.lines).replace(b"This run's store", b"")
    ends_well(stage)
    assert store.code() == 0
    assert store.output.count("refused a connection from 127.0.0.1") == len(attempts)
    assert "Traceback" not in store.output


def test_an_agent_with_another_secret_waits_in_vain_and_says_why(stage: Stage, tmp_path: Path) -> None:
    stage.store()
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text("0f" * 32)
    flags = ["--rdzv-conf", f"join_timeout=7,secret_file={other}"]
    agent = stage.agent(0, *flags, stage.script(LOOP), stage.done(), nnodes="1")
    assert agent.code() == 2, agent.output
    assert "has another secret than this node" in agent.lines[-2]


def test_silent_and_greedy_connections_keep_nobody_out_where_few_files_may_be_open(stage: Stage) -> None:
    command = [*STORE, "--port", str(stage.port), "--first-seconds", "0.5"]
    limited = ["prlimit", "--nofile=256:256", "--as=600000000", *command]
    store = stage.run(limited)
    store.line("listening")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    crowd: list[socket.socket] = []
    try:
        for number in range(600):
            with contextlib.suppress(OSError):
                crowd.append(socket.create_connection(("127.0.0.1", stage.port), timeout=5))
                if number % 3 == 0:
                    crowd[-1].sendall(b"x" * 4000)
        run_of_two(stage)
        ends_well(stage)
    finally:
        for item in crowd:
            item.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert store.code() == 0
    assert len(store.lines) < 60, "the log grew with the number of connections"
    assert "Traceback" not in store.output


def test_a_stranger_that_stays_connected_does_not_hold_up_the_end_of_a_run(stage: Stage) -> None:
    stage.store("--linger-seconds", "0.2")
    run_of_two(stage)
    stranger = Stranger(stage.port)
    stranger.authenticate(read_run_secret(str(stage.secret_file)))
    stranger.send(encode(hello("worker-9")), encode(Join(port=1)))
    stranger.lines.readline()
    ends_well(stage)


def test_a_secret_file_that_cannot_be_used_is_named_with_the_fix(stage: Stage, tmp_path: Path) -> None:
    command = [*STORE, "--port", str(stage.port), "--run-id", "run"]
    for name, mode, text in (("open", 0o644, "0f" * 32), ("of-another-run", 0o600, f"run-6:{'0f' * 32}")):
        file = tmp_path / name
        file.touch(mode)
        file.write_text(text)
        run = stage.run(command, {"DDP_SECRET_FILE": str(file)})
        assert run.code() == 2, run.output
        assert str(file) in run.output
        assert len([line for line in run.lines if line]) == 1
    none = stage.agent(0, stage.script(LOOP), stage.done(), DDP_SECRET_FILE="")
    assert none.code() == 2
    assert re.search(r"DDP_SECRET_FILE.*secret_file=FILE", none.output)
