"""Pods with the labels of a job and without its secret, which do what they can against its run.

:func:`start_stranger` starts one. Its program speaks the protocol of before the handshake, and garbage, to the store
and to the workers' metrics port; it holds idle connections to the store, and it listens at the store's port itself.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final

from bench.drivers.node_access import ANSWER
from ddp_trainer.common.constants import Label, Port, PortName, Role
from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.messages import (
    KEY_PURPOSE,
    VERSION,
    Failed,
    Failure,
    Hello,
    Join,
    Leave,
    Over,
    Part,
    Policy,
    Rejected,
    Succeeded,
    Verdict,
    WorkerState,
    encode,
)
from ddp_trainer.net.handshake import ClientHandshake
from ddp_trainer.net.run_secret import RunSecret
from tests.cluster.live_cluster import RESTRICTED, Namespace, until

IDLE: Final = 32
"""Connections that a stranger holds to the store, and opens again when the store closes them."""

PROGRAM: Final = """\
import collections, json, os, socket, sys, threading, time

store, workers, port, metrics, idle = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
says, answers = ([bytes.fromhex(each) for each in json.loads(words)] for words in sys.argv[6:8])
count = collections.Counter()
own = os.environ["POD_IP"]

def addresses(name):
    try:
        found = {each[4][0] for each in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)}
    except OSError:
        return []
    return sorted(found - {own})

def attempt(address, port, lines):
    try:
        with socket.create_connection((address, port), timeout=2) as opened:
            count["connected"] += 1
            opened.sendall(lines)
            opened.settimeout(0.5)
            got = b""
            while len(got) < 65536 and (more := opened.recv(4096)):
                got += more
            count["started"] += b'"start"' in got or b'"waiting"' in got
    except OSError:
        pass

def attack():
    while True:
        for lines in says:
            for address in addresses(store):
                attempt(address, port, lines)
            for address in addresses(workers):
                attempt(address, metrics, lines)
        time.sleep(0.05)

def hold():
    while True:
        for address in addresses(store):
            try:
                with socket.create_connection((address, port), timeout=2) as opened:
                    count["held"] += 1
                    while opened.recv(4096):
                        pass
            except OSError:
                pass
        time.sleep(0.2)

def serve(accepted, number):
    try:
        with accepted:
            accepted.recv(4096)
            count["agents"] += 1
            accepted.sendall(answers[number % len(answers)])
            while accepted.recv(4096):
                pass
    except OSError:
        pass

listener = socket.create_server(("", port))
for work in [attack, *[hold] * idle]:
    threading.Thread(target=work, daemon=True).start()

def tell():
    while True:
        print(json.dumps(count), flush=True)
        time.sleep(0.5)

threading.Thread(target=tell, daemon=True).start()
number = 0
while True:
    accepted, (address, *_) = listener.accept()
    number += 1
    threading.Thread(target=serve, args=(accepted, number), daemon=True).start()
"""


def _old(message: Any) -> bytes:
    """A line of the protocol of before the handshake."""
    line = json.loads(encode(message))
    return json.dumps({**line, **({"version": 4} if line["is"] == "hello" else {})}).encode() + b"\n"


def _says() -> list[bytes]:
    """What the stranger sends, a connection each."""
    node = Node(token="stranger", name="digits-worker-0", index=0, local_world_size=1, address="127.0.0.1")
    policy = Policy(min_nodes=1, max_nodes=1, max_restarts=0)
    hello = _old(Hello(version=VERSION, run_id="", node=node, policy=policy, standing=WorkerState.IDLE))
    failure = Failure(
        generation=1, rank=0, local_rank=0, node="stranger", exit_code=1, reason="error", message="ended", timestamp=0.0
    )
    impostor = ClientHandshake(RunSecret.random().key(KEY_PURPOSE), VERSION)
    return [
        hello + _old(Join(port=1)),
        hello + _old(Succeeded(generation=1)) + _old(Leave()),
        hello + _old(Failed(failure=failure)),
        impostor.first_message + b'{"is":"proof","proof":"' + b"0" * 64 + b'"}\n' + hello + _old(Join(port=1)),
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + b"\xff" * 300 + b"\n",
        b"x" * 20_000,
    ]


def _answers() -> list[bytes]:
    """What the stranger sends to an agent that takes it for the store; nothing to each fourth."""
    over = encode(Over(verdict=Verdict.SUCCEEDED, exit_code=0)) + encode(Part())
    return [b"", over, encode(Rejected(why="ended", exit_code=170)), b"\xff" * 300 + b"\n"]


def start_stranger(space: Namespace, job: str, role: Role, machine: str) -> str:
    """Start a stranger with the labels of a role of a job on a machine; return its name when it runs."""
    name = f"stranger-{role}-{machine}"
    words = [_says(), _answers()]
    container = {
        "name": "stranger",
        "image": space.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            *("python", "-c", PROGRAM, f"{job}-store", job, str(int(Port.RENDEZVOUS)), str(int(Port.METRICS))),
            *(str(IDLE), *(json.dumps([line.hex() for line in lines]) for lines in words)),
        ],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": PortName.RENDEZVOUS, "containerPort": int(Port.RENDEZVOUS)}],
        "securityContext": RESTRICTED,
    }
    pod = {
        "metadata": {"name": name, "labels": {Label.JOB: job, Label.ROLE: role}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": machine},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }
    space.api.create(space.path("v1", "pods"), pod)
    until("a stranger that runs", lambda: _log(space, name))
    return name


def _log(space: Namespace, name: str) -> str:
    path = space.path("v1", "pods", name)
    is_running = space.api.get(path)["status"]["phase"] == "Running"
    text = space.api.text(f"{path}/log", limits=ANSWER) if is_running else ""
    return next((line for line in reversed(text.splitlines()) if line[:1] + line[-1:] == "{}"), "")


def counts_of(space: Namespace, name: str) -> Counter[str]:
    """What a stranger has come to: connections that it made and held, agents that it saw, answers as to a member."""
    return Counter(json.loads(until("a stranger's report", lambda: _log(space, name))))
