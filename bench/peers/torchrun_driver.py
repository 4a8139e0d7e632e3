"""A plain script under a launcher, by default stock torchrun: the baseline of ``bench recovery``.

Runs ``bench/scripts/plain_ddp.py``, with one or two agents on this machine, and reads from the script's log who stepped
when.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.drivers.fork_server import children, workers

SCRIPT = Path(__file__).parents[1] / "scripts" / "plain_ddp.py"
POLL_SECONDS = 0.02
STORE_SECONDS = 30.0
STOCK: Final = (sys.executable, "-m", "torch.distributed.run")
OURS: Final = (sys.executable, "-m", "ddp_trainer", "launch")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the script's log."""

    step: int
    time: float
    rank: int
    world: int
    pid: int


def steps_of(log: Path) -> list[Step]:
    """Every whole line that a script wrote so far."""
    if not log.exists():
        return []
    return [Step(**json.loads(line)) for line in log.read_text().split("\n")[:-1]]


def free_port() -> int:
    """Return a free TCP port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(slots=True)
class Torchrun:
    """Agents that run the plain script together."""

    directory: Path
    nnodes: str
    nproc: int
    arguments: tuple[str, ...] = ()
    """More flags for torchrun, as ``--max-restarts=100``."""
    launcher: tuple[str, ...] = STOCK
    script_arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_agent(self, place: int | None = None) -> None:
        """Start another agent with a separate loopback address, or restart a lost agent at its place."""
        number = len(self.agents) if place is None else place
        command = [
            *(*self.launcher, f"--nnodes={self.nnodes}", f"--nproc-per-node={self.nproc}"),
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--rdzv-id=bench"),
            *(f"--local-addr=127.0.0.{number + 1}", *self.arguments, str(SCRIPT)),
            *(f"--trace={self.log}", f"--checkpoint={self.directory / 'checkpoint.pt'}"),
            *self.script_arguments,
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with (self.directory / f"agent-{number}.log").open("ab") as output:
            agent = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
        self.agents[number : number + 1] = [agent]

    def await_store(self) -> None:
        """Wait until the first agent has the store: else the second one may get it, and takes it along when it goes."""
        deadline = time.monotonic() + STORE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(POLL_SECONDS)

    @property
    def log(self) -> Path:
        """Path of the ranks' log."""
        return self.directory / "steps.jsonl"

    def steps(self) -> list[Step]:
        """Every whole line that the ranks wrote so far."""
        return steps_of(self.log)

    def wait(self, wanted: Callable[[Step], bool], *, timeout: float, workers: int = 1) -> float | None:
        """Return when the last of ``workers`` processes first logged a ``wanted`` step; None after ``timeout``."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            first: dict[int, float] = {}
            for step in filter(wanted, self.steps()):
                first.setdefault(step.pid, step.time)
            if len(first) >= workers:
                return sorted(first.values())[workers - 1]
            if all(agent.poll() is not None for agent in self.agents):
                return None
            time.sleep(POLL_SECONDS)
        return None

    def end_agent(self, agent: int) -> float:
        """SIGTERM an agent; return the Unix time of the signal."""
        begun = time.time()
        self.agents[agent].terminate()
        return begun

    def kill_worker(self, agent: int = 0) -> float:
        """SIGKILL the newest worker of an agent; return the Unix time of the kill."""
        begun = time.time()
        pid = self.agents[agent].pid
        os.kill((workers(pid) if self.launcher == OURS else children(pid))[-1], signal.SIGKILL)
        return begun

    def kill_agent(self, agent: int) -> float:
        """SIGKILL an agent and its workers together, as on the death of a node; return the time of the kill."""
        begun = time.time()
        processes = [self.agents[agent].pid, *children(self.agents[agent].pid)]
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agents[agent].wait()
        return begun

    def stop(self) -> None:
        """Kill everything."""
        for number, agent in enumerate(self.agents):
            if agent.poll() is None:
                self.kill_agent(number)


@contextlib.contextmanager
def torchrun(
    directory: Path,
    *,
    nnodes: str,
    nproc: int,
    arguments: tuple[str, ...] = (),
    launcher: tuple[str, ...] = STOCK,
    script_arguments: tuple[str, ...] = (),
) -> Iterator[Torchrun]:
    """A fresh run with one agent that is killed at the end, whatever happens."""
    directory.mkdir(parents=True)
    run = Torchrun(directory, nnodes, nproc, arguments, launcher, script_arguments)
    try:
        run.start_agent()
        run.await_store()
        yield run
    finally:
        run.stop()
