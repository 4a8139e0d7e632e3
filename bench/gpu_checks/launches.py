"""Launchers, stores and the trainer as processes, used as a person would: by flags, output, exit codes and files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from bench.gpu_checks.check_runner import ROOT, children, environment
from bench.harness import CannotMeasure
from ddp_trainer.process.heartbeat_page import STACKS_BEFORE

PYTHON: Final = sys.executable
LAUNCH: Final = (PYTHON, "-m", "ddp_trainer", "launch")
TRAIN: Final = ("-m", "ddp_trainer", "train")
ALONE: Final = ("--standalone", "--nproc-per-node", "1", "--no-lint")
TASKS: Final = "bench.gpu_checks.tasks"
_POLL_SECONDS: Final = 0.01


class OutputLine(NamedTuple):
    """A line of output and when it was read, by ``time.monotonic``."""

    time: float
    text: str


class Running:
    """One process, and every line that it has written so far."""

    def __init__(self, command: Sequence[str], **more: str) -> None:
        self.lines: list[OutputLine] = []
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment() | {"OMP_NUM_THREADS": "1"} | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self.lines.append(OutputLine(time.monotonic(), text.rstrip("\n")))

    @property
    def output(self) -> str:
        """All lines."""
        return "\n".join(line.text for line in list(self.lines))

    def events(self, name: str) -> Iterator[tuple[float, dict[str, Any]]]:
        """Events of the trainer's ``--log-json`` of this name, and when they were read."""
        for line in list(self.lines):
            if f'"event": "{name}"' in line.text:
                with contextlib.suppress(ValueError):
                    yield line.time, json.loads(line.text[line.text.index("{") :])

    def wait(self, seconds: float) -> int | None:
        """Return the exit code, or None after so many seconds."""
        try:
            code = self.process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(5.0)
        return code

    def wait_for(self, pattern: str, seconds: float, *, after: int = 0) -> re.Match[str] | None:
        """Return the first match in a line after so many; None after so many seconds, or when the process has ended."""
        deadline = time.monotonic() + seconds
        while True:
            is_over = not self._reader.is_alive()
            for line in self.lines[after:]:
                if match := re.search(pattern, line.text):
                    return match
            if is_over or time.monotonic() > deadline:
                return None
            time.sleep(_POLL_SECONDS)

    def worker(self) -> int | None:
        """Return the process id of the first worker, which has the file of its stacks open; None before it starts."""
        for pid in sorted(children(self.process.pid)):
            with contextlib.suppress(OSError):
                if any(
                    str(descriptor.readlink()).endswith(STACKS_BEFORE)
                    for descriptor in Path(f"/proc/{pid}/fd").iterdir()
                ):
                    return pid
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def train_single_rank(*flags: str, seconds: float, launch: Sequence[str] = (), **more: str) -> Running:
    """Run the trainer with one rank to its end, under the launcher, and without a fork server beside it.

    Raises:
        CannotMeasure: It did not end in time, or not with 0.
    """
    with Running([*LAUNCH, *ALONE, "--no-fork-server", *launch, *TRAIN, "--log-json", *flags], **more) as run:
        code = run.wait(seconds)
    if code != 0:
        raise CannotMeasure(f"the trainer ended with {code} {' '.join(flags)}: {run.output[-800:]}")
    return run


def checkpoint_weights(directory: Path, file: Path) -> dict[str, Any]:
    """Return the weights of the newest checkpoint, by ``ddp_trainer checkpoint export``.

    Raises:
        CannotMeasure: No checkpoint can be exported.
    """
    import torch

    command = [PYTHON, "-m", "ddp_trainer", "checkpoint", "export", str(directory), "--to", str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"no weights in {directory}: {done.stderr.strip()[-300:]}")
    weights = torch.load(file, weights_only=True)
    return dict(weights)


def trainer_flag(pattern: str) -> str | None:
    """Return the first flag of the trainer or the launcher that matches, as in ``--survive-on-nccl``."""
    for command in ((PYTHON, "-m", "ddp_trainer", "train", "--help"), (*LAUNCH, "--help")):
        help_text = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
        ).stdout
        if found := re.search(rf"--[\w-]*{pattern}[\w-]*", help_text):
            return found[0]
    return None


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Nodes:
    """A store and agents with one worker each, which all see the same GPU."""

    directory: Path
    program: tuple[str, ...]
    least: int
    most: int
    variables: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    command: tuple[str, ...] = LAUNCH
    port: int = field(default_factory=free_port)
    store: Running | None = None
    agents: dict[int, Running] = field(default_factory=dict)
    metrics_ports: dict[int, int] = field(default_factory=dict)
    ended: list[Running] = field(default_factory=list)
    """Agents that were replaced; what they printed counts."""

    def start(self) -> None:
        """Start the store and all agents."""
        self.directory.mkdir(parents=True, exist_ok=True)
        secret = self.directory / "run-secret"
        secret.touch(0o600)
        secret.write_text(f"{secrets.token_hex(32)}\n")
        command = [PYTHON, "-m", "ddp_trainer", "store", "--port", str(self.port)]
        self.store = Running(command, DDP_SECRET_FILE=str(secret))
        for place in range(self.most):
            self.start_agent(place)

    def start_agent(self, place: int) -> None:
        """Start the agent of a node, again or for the first time."""
        if place in self.agents:
            self.ended.append(self.agents[place])
        folder = self.directory / f"run-{place}"
        folder.mkdir(exist_ok=True)
        command = [
            *(
                *self.command,
                "--nnodes",
                f"{self.least}:{self.most}",
                "--nproc-per-node",
                "1",
                "--max-restarts",
                "1000",
            ),
            *("--rdzv-backend", "ddp", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench-gpu"),
            *("--no-lint", *self.flags, *self.program),
        ]
        port = self.metrics_ports.setdefault(place, free_port())
        own = {
            "DDP_METRICS_PORT": str(port),
            "DDP_SECRET_FILE": str(self.directory / "run-secret"),
            "DDP_POD_NAME": f"worker-{place}",
            "DDP_RUN_DIR": str(folder),
            "DDP_CHECKPOINT_DIR": str(self.directory / "checkpoints"),
            "DDP_FORK_SERVER": "2",
            "NCCL_HOSTID": f"node-{place}",
        }
        self.agents[place] = Running(command, **own | self.variables)

    def committed_steps(self) -> list[tuple[float, int, int]]:
        """Return time, step and world size of every step that a rank 0 printed, by time."""
        found = []
        for agent in [*self.ended, *self.agents.values()]:
            world = 0
            for line in list(agent.lines):
                if '"event": "started"' in line.text:
                    world = int(json.loads(line.text[line.text.index("{") :])["world_size"])
                elif match := re.search(r'"event": "step", "step": (\d+)', line.text):
                    found.append((line.time, int(match[1]), world))
        return sorted(found)

    def wait_for_step(self, after: float, seconds: float, *, world: int, steps: int = 1) -> float | None:
        """Return when so many steps of a world of this size were committed after a moment; None after too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            found = [when for when, _, size in self.committed_steps() if when > after and size == world]
            if len(found) >= steps:
                return found[steps - 1]
            time.sleep(_POLL_SECONDS)
        return None

    def worker_socket(self, place: int) -> Path:
        """Return the socket of a node's worker, where the launcher reads its flight recorder."""
        return self.directory / f"run-{place}" / "metrics" / f"rank-{place}.sock"

    def stop(self, seconds: float) -> list[int | None]:
        """Send SIGTERM to all agents and return their exit codes."""
        for agent in self.agents.values():
            agent.signal(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        return [agent.wait(deadline - time.monotonic()) for agent in self.agents.values()]

    def tail(self) -> str:
        """Return the end of the output of each agent."""
        return " | ".join(agent.output[-300:] for agent in self.agents.values())

    def close(self) -> None:
        """Kill everything."""
        for running in [*self.agents.values(), *([self.store] if self.store else [])]:
            running.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kill_worker(agent: Running, number: signal.Signals = signal.SIGKILL) -> int | None:
    """Send a signal to the worker of an agent; return its process id, or None where it has none."""
    pid = agent.worker()
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pid
