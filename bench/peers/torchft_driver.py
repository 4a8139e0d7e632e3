"""torchft under the same faults, where it is installed: two replica groups of one process each, and its lighthouse.

Replicas request a quorum from its lighthouse every 100 ms, which waits 1 s for absent ones, as in its own examples. A
replica counts as dead after 1 s without a heartbeat. The measurement restarts a killed replica, as a scheduler would.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.peers.torchrun_driver import Step, free_port, steps_of

SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "torchft_loop.py"
POLL_SECONDS: Final = 0.01
LIGHTHOUSE: Final = """
import sys, threading
from torchft.coordination import LighthouseServer
server = LighthouseServer(
    bind=sys.argv[1], min_replicas=1, join_timeout_ms=1000, quorum_tick_ms=100, heartbeat_timeout_ms=1000
)
threading.Event().wait()
"""


def is_installed() -> bool:
    """Return whether torchft is installed."""
    return importlib.util.find_spec("torchft") is not None


@dataclass(slots=True)
class TorchFt:
    """A lighthouse and its replicas."""

    directory: Path
    port: int = field(default_factory=free_port)
    lighthouse: subprocess.Popen[bytes] | None = None
    replicas: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_lighthouse(self) -> None:
        """Start it."""
        command = [sys.executable, "-c", LIGHTHOUSE, f"[::]:{self.port}"]
        self.lighthouse = self._start("lighthouse", command, {})

    def start(self, place: int) -> float:
        """Start a replica; return the Unix time of the start."""
        begun = time.time()
        command = [sys.executable, str(SCRIPT), "--trace", str(self.log), "--replica", f"replica-{place}"]
        self.replicas[place] = self._start(
            f"replica-{place}",
            command,
            {
                "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}",
                "RANK": "0",
                "WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "OMP_NUM_THREADS": "1",
            },
        )
        return begun

    def kill(self, place: int) -> float:
        """SIGKILL a replica; return the Unix time of the signal."""
        begun = time.time()
        self.replicas[place].kill()
        self.replicas[place].wait()
        return begun

    @property
    def log(self) -> Path:
        """Path of the replicas' log."""
        return self.directory / "steps.jsonl"

    def steps(self) -> list[Step]:
        """Return the steps that replica 0 has committed."""
        return [step for step in steps_of(self.log) if step.rank == 0]

    def first_step(self, after: float, world: int, *, timeout: float) -> float | None:
        """Return when replica 0 first committed a step after a moment in this world size; None after ``timeout``."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            found = [step.time for step in self.steps() if step.time > after and step.world == world]
            if found:
                return found[0]
            time.sleep(POLL_SECONDS)
        return None

    def last_step(self, before: float) -> float:
        """Return when replica 0 committed its last step before a moment."""
        return max(step.time for step in self.steps() if step.time < before)

    def stop(self) -> None:
        """Kill everything."""
        for process in (*self.replicas.values(), self.lighthouse):
            if process:
                process.kill()
                process.wait()

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | environment)


@contextlib.contextmanager
def torchft(directory: Path) -> Iterator[TorchFt]:
    """Both replicas, and their end."""
    directory.mkdir(parents=True)
    run = TorchFt(directory)
    try:
        run.start_lighthouse()
        run.start(0)
        run.start(1)
        yield run
    finally:
        run.stop()
