"""Preflight of all nodes between a rendezvous and the first workers, in a child process.

:meth:`Preflight.start` checks the first group of a run as a whole. It runs at the address and port of rank 0, which its
agent reserves but does not use yet. Running nodes do not wait for a joining node: it holds a preflight with some of
them before it may join (:meth:`Preflight.start_join_check`). If no node can take part, the joining node checks itself
alone, beside its workers, and a finding does not end the run. A node whose worker failed checks the health of its GPUs
before it joins again (:meth:`Preflight.start_gpu_check`).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.host.endpoint import Endpoint
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.workers.children import Children, kill
from ddp_trainer.launch.workers.worker_group import BOOTSTRAP

_STDERR: Final = 2
MEET_SECONDS: Final = 30.0
"""Time that a joining node waits for the processes of the members."""


class PreflightPolicy(StrEnum):
    """Effect of a preflight on the start of workers."""

    OFF = "off"
    WARN = "warn"
    """Print the findings, and start."""
    STRICT = "strict"
    """Start only if no check fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightVerdict:
    """Result of a preflight."""

    may_start: bool
    message: str = ""


@dataclass(slots=True, eq=False)
class Preflight:
    """Preflights of one agent: its own, which runs once, and those of nodes that join."""

    children: Children
    """Child processes of this launcher."""
    care: PreflightPolicy
    """Effect of a preflight on the start of workers."""
    local_world_size: int
    """Number of workers of this node."""
    script: str
    """File to compare between nodes; empty for none."""
    folder: Path
    """Folder of the result files."""
    environ: Mapping[str, str]
    """Environment of the preflight processes."""
    is_due: bool = field(init=False)
    """True until this agent's own preflight has started, before its first workers."""
    pid: int | None = None
    """Process id of this agent's own preflight; None while none runs."""

    def __post_init__(self) -> None:
        self.is_due = self.care is not PreflightPolicy.OFF

    def holds_up(self, generation: Assignment) -> bool:
        """Return whether workers must wait for the preflight. They wait only in the first group."""
        return generation.number == 1

    def start(self, generation: Assignment, ended: Callable[[PreflightVerdict], None], more: Mapping[str, str]) -> None:
        """Start the preflight of a generation.

        Args:
            generation: Place of this node.
            ended: Called once with the result.
            more: Environment variables that workers get in addition.

        Raises:
            OSError: The process cannot be started.
        """
        self.is_due = False
        is_first = self.holds_up(generation)
        care = self.care if is_first else PreflightPolicy.WARN
        document = self.folder / "preflight.json"
        if is_first and generation.node_count > 1:
            flags = self._place_in(generation)
            flags += ["--quiet"] if generation.node_rank else []  # the table is the same on all nodes
        else:
            flags = ["--standalone", "--nproc-per-node", str(self.local_world_size)]

        def over(outcome: PreflightVerdict) -> None:
            self.pid = None
            ended(outcome)

        self.pid = self._start(self._table_command(flags, document), document, care, over, more)

    def start_join_check(
        self, number: int, place: Assignment, ended: Callable[[PreflightVerdict], None], more: Mapping[str, str]
    ) -> int:
        """Take part in the preflight of a joining node, as that node or as one of the others. The others print and
        leave nothing.

        Args:
            number: Number of this preflight.
            place: Place of this node; the joining node has the last rank.
            ended: Called once with the result.
            more: Environment variables that workers get in addition.

        Returns:
            The process id.

        Raises:
            OSError: The process cannot be started.
        """
        last = place.node_count - 1
        is_ours = place.node_rank == last
        stdout = _STDERR if is_ours and self.is_due else subprocess.DEVNULL
        self.is_due = self.is_due and not is_ours
        document = self.folder / ("preflight.json" if is_ours else f"preflight-{number}.json")
        flags = [*self._place_in(place), "--newcomer", str(last), "--timeout", f"{MEET_SECONDS:g}"]
        command = self._table_command(flags, document)

        def over(outcome: PreflightVerdict) -> None:
            if not is_ours:
                document.unlink(missing_ok=True)
            ended(outcome)

        return self._start(command, document, self.care, over, more, stdout)

    def start_gpu_check(self, devices: Sequence[str], ended: Callable[[PreflightVerdict], None]) -> int:
        """Check the health of GPUs of this node before it joins again.

        Args:
            devices: GPUs to check.
            ended: Called once with the result.

        Returns:
            The process id.

        Raises:
            OSError: The process cannot be started.
        """
        document = self.folder / "gpu-health.json"
        target = ["-m", "ddp_preflight.gpu_health", ",".join(devices), str(document)]
        return self._start(target, document, self.care, ended, {})

    def stop(self) -> None:
        """Kill this agent's own preflight, if it runs."""
        if self.pid is not None:
            kill(self.pid, signal.SIGKILL)

    def _place_in(self, place: Assignment) -> list[str]:
        where = str(Endpoint(place.master_address, place.master_port))
        flags = ["--nnodes", str(place.node_count), "--node-rank", str(place.node_rank), "--rdzv-endpoint", where]
        return [*flags, "--nproc-per-node", str(self.local_world_size)]

    def _table_command(self, flags: Sequence[str], document: Path) -> list[str]:
        script = [self.script] if self.script else []
        return ["-m", "ddp_trainer", "preflight", *flags, "--json-file", str(document), *script]

    def _start(
        self,
        target: Sequence[str],
        document: Path,
        care: PreflightPolicy,
        ended: Callable[[PreflightVerdict], None],
        more: Mapping[str, str],
        stdout: int = _STDERR,
    ) -> int:
        def over(returncode: int) -> None:
            is_fit = returncode == Exit.SUCCESS
            message = "" if is_fit else _failure_message(document, returncode)
            ended(PreflightVerdict(may_start=is_fit or care is PreflightPolicy.WARN, message=message))

        document.unlink(missing_ok=True)
        # -P: the working directory is the user's, and may hold a module of any name.
        python = [sys.executable, "-P", *target]
        command = [sys.executable, "-S", str(BOOTSTRAP), str(os.getpid()), "command", *python]
        return self.children.start(command, {**self.environ, **more}, over, stdout=stdout)


def _failure_message(document: Path, returncode: int) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StopIteration):
        findings = json.loads(document.read_text())["findings"]
        worst = next(finding for finding in findings if finding["status"] == "fail")
        where = f"{worst['node']}: " if worst["node"] else ""
        return f"The preflight's check {worst['check']} fails. {where}{worst['message']}; fix: {worst['hint']}"
    return f"The preflight ended with {returncode} and without a result"


def write_error(file: Path, sentence: str) -> None:
    """Write a sentence in the format of a worker's torch error file, from which the first error of a run is read."""
    extra = {"timestamp_ns": str(time.time_ns()), "py_callstack": ""}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"message": {"message": sentence, "extraInfo": extra}}))
