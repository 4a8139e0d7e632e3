"""Two nodes on one machine: network namespaces joined by a cable, each with its own host name and /etc/hosts."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch_harness import secret_file

PORT = 29400
TOOLS = ("ip", "nft", "unshare", "mount", "hostname")
SETTLE = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'
IPV6 = {"a": "fd00:77::1", "b": "fd00:77::2"}
IPV4 = {"a": "10.213.77.1", "b": "10.213.77.2"}


def why_not() -> str:
    """A sentence on why this machine cannot have such nodes; empty when it can."""
    if os.geteuid() != 0:
        return "Network namespaces need root."
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"{missing[0]} is not installed."
    probe = subprocess.run(["unshare", "-n", "-m", "-u", "nft", "list", "ruleset"], capture_output=True, check=False)
    return f"This machine allows no namespaces: {probe.stderr.decode().strip()}" if probe.returncode else ""


@dataclass
class Side:
    """One node."""

    name: str
    namespace: str
    hosts: Path
    secret_file: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def sh(self, command: str) -> None:
        """Run a shell command as root in this node's network."""
        subprocess.run(["ip", "netns", "exec", self.namespace, "sh", "-ec", command], check=True)

    def block(self, rule: str) -> None:
        """A rule of its firewall for what comes in."""
        self.sh(
            "nft add table inet t; nft 'add chain inet t in { type filter hook input priority 0; }'; "
            f"nft 'add rule inet t in {rule}'"
        )

    def knows(self, **names: str) -> None:
        """Write its /etc/hosts."""
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{addr} {name}\n" for name, addr in names.items()))

    def start(self, *command: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """A process on this node."""
        inside = ["ip", "netns", "exec", self.namespace, "unshare", "-m", "-u", "sh", "-ec", SETTLE, "sh"]
        process = subprocess.Popen(
            [*inside, str(self.hosts), f"node-{self.name}", *command],
            env={**os.environ, "DDP_SECRET_FILE": str(self.secret_file), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


@dataclass
class Outcome:
    """Result of one preflight."""

    code: int
    document: dict[str, Any]
    seconds: float

    def failing(self, status: str = "fail") -> set[str]:
        return {finding["check"] for finding in self.document["findings"] if finding["status"] == status}

    def message(self, check: str) -> str:
        """All that a check says, with the nodes it says it of."""
        own = [finding for finding in self.document["findings"] if finding["check"] == check]
        return "\n".join(f"{finding['node']}: {finding['message']}; {finding['hint']}" for finding in own)


@contextmanager
def pair(folder: Path) -> Iterator[tuple[Side, Side]]:
    """Two nodes that have all they need: IPv4, IPv6, names of themselves and each other."""
    secret = secret_file(folder)
    sides = [Side(name, f"ddp-{name}-{os.getpid()}", folder / f"hosts-{name}", secret) for name in "ab"]
    with ExitStack() as stack:
        for side in sides:
            subprocess.run(["ip", "netns", "add", side.namespace], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "del", side.namespace], check=True)
            side.knows(**{"node-a": IPV4["a"], "node-b": IPV4["b"], "first.example.com": IPV4["a"]})
        a, b = sides
        a.sh(f"ip link add eth0 type veth peer name eth0 netns {b.namespace}")
        for side in sides:
            side.sh(f"ip link set lo up; ip addr add {IPV4[side.name]}/24 dev eth0; ip link set eth0 up")
        for side in sides:  # the kernel takes its time to call a cable plugged in
            side.sh("timeout 5 sh -c 'until ip link show eth0 | grep -q \"state UP\"; do sleep 0.02; done'")
        stack.callback(_stop, sides)
        yield a, b


def _stop(sides: list[Side]) -> None:
    for process in [process for side in sides for process in side.started]:
        if process.poll() is None:
            process.kill()
        process.communicate()


def both(
    a: Side, b: Side, *flags: str, timeout: float = 60, environment: Mapping[str, str] | None = None, **more: list[str]
) -> tuple[Outcome, Outcome]:
    """A preflight of both nodes; ``environment`` and ``b_flags`` are for the second alone, ``b_python`` replaces how it
    is started.
    """
    common = ["--nnodes", "2", "--timeout", f"{timeout:g}", "-o", "json", *flags]
    endpoint = [] if "--rdzv-endpoint" in flags else ["--rdzv-endpoint", f"first.example.com:{PORT}"]
    python = [sys.executable, "-m", "ddp_trainer"]
    began = time.monotonic()
    first = a.start(*python, "preflight", *endpoint, *common, "--node-rank", "0")
    second = b.start(
        *more.get("b_python", python),
        "preflight",
        *endpoint,
        *common,
        "--node-rank",
        "1",
        *more.get("b_flags", []),
        environment=environment,
    )
    return _outcome(first, began), _outcome(second, began)


def _outcome(process: subprocess.Popen[str], began: float) -> Outcome:
    out, err = process.communicate(timeout=150)
    assert err == "", err
    return Outcome(process.returncode, json.loads(out), time.monotonic() - began)


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not())
