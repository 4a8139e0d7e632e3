"""Worker groups of real trainer processes, for the tests beside this file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support import fork_server
from tests.support.fork_server import ForkedProcess
from tests.support.ports import free_port

ENTRY = "import sys; from ddp_trainer.train.cli import main; sys.exit(main(sys.argv[1:]))"
"""The program ``python -m ddp_trainer train``, with fewer imports."""


class WorkerGroup:
    """``world`` ranks of one generation on this machine; all gone when the ``with`` block ends."""

    def __init__(
        self,
        world: int,
        flags: Sequence[str],
        *,
        directory: Path,
        program: Sequence[str] = ("-c", ENTRY),
        generation: int = 0,
        pods: Sequence[Mapping[str, str]] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """``pods``: environment of each rank, each of which is then a separate pod."""
        self._directory = directory
        common = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))},
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "DDP_GENERATION": str(generation),
            "DDP_RUN_ID": "test",
            **(env or {}),
        }
        command = [*program, "--log-json", *flags]
        self.ranks = [self._start(rank, command, {**common, **self._place(rank, world, pods)}) for rank in range(world)]

    def _start(self, rank: int, command: list[str], env: dict[str, str]) -> ForkedProcess:
        named = {**env, "TORCHELASTIC_ERROR_FILE": str(self.error_file(rank))}
        with (self._directory / f"stderr.{rank}").open("w") as stderr:
            return fork_server.start(command, env=named, stderr=stderr)

    @staticmethod
    def _place(rank: int, world: int, pods: Sequence[Mapping[str, str]]) -> dict[str, str]:
        if pods:
            return {"RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", **pods[rank]}
        return {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}

    def error_file(self, rank: int) -> Path:
        """torch's error file of a rank."""
        return self._directory / f"error.{rank}.json"

    def stderr(self, rank: int = 0) -> str:
        """Return the stderr of a rank so far."""
        return (self._directory / f"stderr.{rank}").read_text()

    def events(self) -> Iterator[dict[str, Any]]:
        """JSON lines of rank 0, as they come, until it ends."""
        stream = self.ranks[0].stdout
        for line in stream:
            yield json.loads(line)

    def wait_until_ready(self) -> None:
        """Return when a task of :mod:`tests.local.workloads.train_waiting` reports it."""
        if not any(event["event"] == "ready" for event in self.events()):
            raise AssertionError(f"the run ended before it was ready: {self.stderr()}")

    def wait_for_step(self, step: int) -> None:
        """Return when rank 0 has committed ``step`` steps; needs ``--log-steps 1``."""
        for event in self.events():
            if event["event"] == "step" and event["step"] >= step:
                return
        raise AssertionError(f"the run ended before step {step}: {self.stderr()}")

    def finish(self) -> list[int]:
        """Exit codes of all ranks, once all have ended."""
        for rank in self.ranks:
            rank.communicate(timeout=120)
        return [rank.returncode for rank in self.ranks]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
