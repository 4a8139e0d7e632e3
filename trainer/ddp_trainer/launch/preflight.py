"""A preflight of all nodes between a rendezvous and the first workers: a child process, since it is another room.

It is held where the ranks will meet: at the address and the port of rank 0, which its agent holds but does not use yet.
The first group of a run is looked at as a whole. Later groups are not: those who run wait for nobody, so a node that
joins them looks at itself alone and beside its workers, and a doubt about it is no reason to end the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.contract import Exit
from ddp_trainer.launch.children import Children, kill
from ddp_trainer.launch.protocol import Generation
from ddp_trainer.launch.workers import BOOTSTRAP

_STDERR: Final = 2
_DOCUMENT: Final = "preflight.json"


class Care(StrEnum):
    """What a preflight is for."""

    OFF = "off"
    WARN = "warn"
    """Print what is found, and start."""
    STRICT = "strict"
    """Start only where nothing fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of it."""

    may_start: bool
    sentence: str = ""


class Preflight:
    """That of one agent, which happens once."""

    def __init__(
        self, children: Children, care: Care, token: str, script: str, log_dir: Path, environ: Mapping[str, str]
    ) -> None:
        """``token`` is this node's; ``script`` is the file to compare, empty for none."""
        self._children = children
        self._token = token
        self._script = script
        self._document = log_dir / _DOCUMENT
        self._environ = environ
        self._care = care
        self._pid: int | None = None
        self.is_due = care is not Care.OFF
        """Before the first workers of this agent."""

    def holds_up(self, generation: Generation) -> bool:
        """Whether workers are to wait for it: where others train already, nobody waits."""
        return generation.number == 1

    def start(self, generation: Generation, ended: Callable[[Verdict], None], more: Mapping[str, str]) -> None:
        """Look at what workers will find, ``more`` included; ``ended`` is called once. Raises OSError."""
        self.is_due = False
        self._document.unlink(missing_ok=True)
        is_first = self.holds_up(generation)
        care = self._care if is_first else Care.WARN
        # -P: the working directory is the user's, and may hold a module of any name.
        target = [sys.executable, "-P", "-m", "ddp_trainer", "preflight", *self._flags(generation, is_first)]
        command = [sys.executable, "-S", str(BOOTSTRAP), str(os.getpid()), "command", *target]
        environ = {**self._environ, **more}
        self._pid = self._children.start(command, environ, partial(self._ended, care, ended), stdout=_STDERR)

    def stop(self) -> None:
        """Look no further, if it is being looked."""
        if self._pid is not None:
            kill(self._pid, signal.SIGKILL)

    def _flags(self, generation: Generation, is_first: bool) -> list[str]:
        rank = generation.node_rank(self._token)
        host = generation.master_address
        where = f"[{host}]:{generation.master_port}" if ":" in host else f"{host}:{generation.master_port}"
        node = generation.nodes[rank]
        flags = ["--nproc-per-node", str(node.local_world_size), "--json-file", str(self._document)]
        if is_first and len(generation.nodes) > 1:
            flags += ["--nnodes", str(len(generation.nodes)), "--node-rank", str(rank), "--rdzv-endpoint", where]
            flags += ["--quiet"] if rank else []  # the table is the same on all nodes
        else:
            flags += ["--standalone"]
        return [*flags, *([self._script] if self._script else [])]

    def _ended(self, care: Care, ended: Callable[[Verdict], None], returncode: int) -> None:
        self._pid = None
        may_start = returncode == Exit.SUCCESS or care is Care.WARN
        ended(Verdict(may_start=may_start, sentence=self._sentence(returncode)))

    def _sentence(self, returncode: int) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, StopIteration):
            document = json.loads(self._document.read_text())
            worst = next(each for each in document["findings"] if each["status"] == "fail")
            where = f"{worst['node']}: " if worst["node"] else ""
            return f"The preflight's check {worst['check']} fails. {where}{worst['message']}; fix: {worst['hint']}"
        return f"The preflight ended with {returncode} and without a result"


def write_error(file: Path, sentence: str) -> None:
    """As torch's error file of a worker, where the first error of a run is looked for."""
    extra = {"timestamp_ns": str(time.time_ns()), "py_callstack": ""}
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"message": {"message": sentence, "extraInfo": extra}}))
