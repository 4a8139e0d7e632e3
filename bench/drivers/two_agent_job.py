"""Two agents of ``ddp-launch`` and their store on this machine, whose steps are seen as their first rank tells them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, NamedTuple, TypeVar

from bench.drivers.fork_server import is_fork_server_ready, workers
from bench.drivers.jobs import ROOT
from bench.harness import CannotMeasure
from bench.peers.torchrun_driver import free_port
from ddp_trainer.common.constants import Env

T = TypeVar("T")

GIVEN_UP: Final = 60.0
"""Seconds after which a run counts as not recovered."""
TRAIN: Final = (
    *("-m", "ddp_trainer", "train", "--task", "digits", "--epochs", "1000000"),
    *("--checkpoint-seconds", "1", "--log-json", "--log-steps", "1"),
)
LOOP: Final = (str(Path(__file__).parents[1] / "scripts" / "elastic_loop.py"),)
FORK_SERVER_SECONDS: Final = "2"
"""Delay until the agents start their fork server, shorter than the default to shorten a round."""
POLL_SECONDS: Final = 0.005


class StepRecord(NamedTuple):
    """One step of rank 0."""

    time: float
    """Unix time at which its line was read."""
    world: int
    """Ranks that took part."""
    group: int
    """Number of the worker group, as rank 0 reported them."""


@dataclass(slots=True)
class StepLog:
    """The steps that an agent's workers print."""

    steps: list[StepRecord] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    """Other output lines, for an error message."""

    def listen(self, output: IO[str]) -> None:
        """Read to the end."""
        world = group = 0
        for line in output:
            if '"event": "step"' in line:
                self.steps.append(StepRecord(time.time(), world, group))
            elif '"event": "started"' in line:
                world, group = int(json.loads(line)["world_size"]), group + 1
            else:
                self.other.append(line)


@dataclass(slots=True)
class TwoAgentJob:
    """A job of one process on each of two nodes; node 0 is the one that survives."""

    directory: Path
    program: tuple[str, ...]
    port: int = field(default_factory=free_port)
    telling: StepLog = field(default_factory=StepLog)
    store: subprocess.Popen[bytes] | None = None
    agents: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start_store(self) -> None:
        """Start or restart the store at the same address."""
        command = [sys.executable, "-m", "ddp_trainer", "store", "--port", str(self.port)]
        environment = os.environ | {Env.SECRET_FILE: str(self._secret_file())}
        with (self.directory / "store.log").open("ab") as log:
            self.store = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)

    def _secret_file(self) -> Path:
        file = self.directory / "run-secret"
        if not file.exists():
            file.touch(0o600)
            file.write_text(f"{secrets.token_hex(32)}\n")
        return file

    def start(self, place: int) -> float:
        """Start the agent of a node; return the Unix time of the start."""
        folder = self.directory / f"run-{place}"
        folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "DDP_FORK_SERVER": FORK_SERVER_SECONDS,
            Env.POD_NAME: f"worker-{place}",
            Env.CHECKPOINT_DIR: str(self.directory / "checkpoints"),
            Env.RUN_DIR: str(folder),
            Env.SECRET_FILE: str(self._secret_file()),
        }
        command = [
            *(sys.executable, "-m", "ddp_trainer", "launch", "--nnodes", "1:2", "--nproc-per-node", "1"),
            *("--rdzv-backend", "ddp", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench"),
            *("--max-restarts", "1000", *self.program),
        ]
        begun = time.time()
        agent = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, text=True
        )
        self.agents[place] = agent
        telling = self.telling if place == 0 else StepLog()
        threading.Thread(target=telling.listen, args=(agent.stdout,), daemon=True).start()
        return begun

    def first_step(self, after: float, *, world: int | None = None) -> float | None:
        """Return when the first step after a moment was committed in a world of this size; None after a timeout."""
        return self._wait(lambda: next((step.time for step in self._steps(after, world)), None))

    def next_group_first_step(self, begun: float, *, world: int | None = None) -> float | None:
        """Return when a group formed after a moment committed its first step; None after a timeout."""
        group = max(step.group for step in self.telling.steps if step.time < begun)
        return self._wait(lambda: next((step.time for step in self._steps(begun, world) if step.group > group), None))

    def last_step(self, before: float) -> float:
        """Return when the last step before a moment was committed."""
        return max(step.time for step in self.telling.steps if step.time < before)

    def train(self, *, world: int, steps: int = 20) -> None:
        """Wait until they train, for so many steps. Raises CannotMeasure."""
        begun = time.time()
        if self._wait(lambda: len(list(self._steps(begun, world))) >= steps or None) is None:
            raise CannotMeasure(f"The agents do not train in a world of {world}: {''.join(self.telling.other[-3:])}")

    def warm(self, place: int) -> None:
        """Wait until an agent has a ready fork server, as it has after some seconds.

        Raises CannotMeasure.
        """
        if self._wait(lambda: is_fork_server_ready(self.agents[place].pid) or None) is None:
            raise CannotMeasure(f"The agent of node {place} has no fork server.")

    def worker(self, place: int) -> int:
        """Process id of the worker of a node."""
        found = workers(self.agents[place].pid)
        if not found:
            raise CannotMeasure(f"The agent of node {place} has no worker.")
        return found[0]

    def end(self, place: int) -> float | None:
        """SIGTERM an agent: seconds until it has exited, None if not with 143."""
        begun = time.time()
        self.agents[place].send_signal(signal.SIGTERM)
        try:
            code = self.agents[place].wait(GIVEN_UP)
        except subprocess.TimeoutExpired:
            return None
        return time.time() - begun if code == 128 + signal.SIGTERM else None

    def kill(self, place: int) -> float:
        """SIGKILL an agent, whose workers die with it, as a node that is lost; return the Unix time of the signal."""
        begun = time.time()
        self.agents[place].kill()
        self.agents[place].wait()
        return begun

    def kill_store(self) -> None:
        """SIGKILL the store."""
        if self.store:
            self.store.kill()
            self.store.wait()

    def stop(self) -> None:
        """Kill everything."""
        for place in self.agents:
            self.kill(place)
        self.kill_store()

    def _steps(self, after: float, world: int | None) -> Iterator[StepRecord]:
        return (step for step in self.telling.steps if step.time > after and world in {None, step.world})

    def _wait(self, found: Callable[[], T | None]) -> T | None:
        deadline = time.monotonic() + GIVEN_UP
        while time.monotonic() < deadline:
            if (it := found()) is not None:
                return it
            time.sleep(POLL_SECONDS)
        return None


@contextlib.contextmanager
def two_agent_job(directory: Path, program: tuple[str, ...]) -> Iterator[TwoAgentJob]:
    """A fresh run of both, that trains, and its end."""
    directory.mkdir(parents=True)
    run = TwoAgentJob(directory, program)
    try:
        run.start_store()
        run.start(0)
        run.start(1)
        run.train(world=2)
        yield run
    finally:
        run.stop()
