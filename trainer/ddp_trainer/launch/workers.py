"""The worker processes of one generation on this node."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ddp_trainer.launch.children import Children, kill, kill_group
from ddp_trainer.launch.environment import Launch, with_local_rank, worker_environment
from ddp_trainer.launch.logs import LogPump, LogSpec, Std
from ddp_trainer.launch.protocol import Generation

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What every worker runs."""

    kind: str
    """``script``, ``module`` or ``command``."""
    target: str
    arguments: tuple[str, ...] = ()
    python: str = sys.executable

    def command(self, local_rank: int) -> list[str]:
        """The command line of one worker, by way of the bootstrap, which ties its life to ours."""
        arguments = with_local_rank(self.arguments, local_rank)
        return [self.python, "-u", str(BOOTSTRAP), str(os.getpid()), self.kind, self.target, *arguments]


class Workers:
    """Starts a worker per local rank, tells of their ends, and signals those that live."""

    def __init__(
        self,
        *,
        children: Children,
        program: Program,
        launch: Launch,
        logs: LogSpec,
        log_dir: Path,
        exited: Callable[[int, int], None],
    ) -> None:
        """``exited`` is called with a local rank and a return code, negative for a signal."""
        self._children = children
        self._program = program
        self._launch = launch
        self._logs = logs
        self._log_dir = log_dir
        self._exited = exited
        self._pump: LogPump | None = None
        self._pids: dict[int, int] = {}

    def start(self, generation: Generation, base: Mapping[str, str]) -> None:
        """Start them all. Raises OSError, LaunchError."""
        folder = self.folder(generation.number)
        shutil.rmtree(folder, ignore_errors=True)
        for local_rank in range(self._launch.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True)
            environment = worker_environment(
                base, self._launch, generation, local_rank, str(self.error_file(generation.number, local_rank))
            )
            self._start_one(local_rank, generation.first_rank(self._launch.token) + local_rank, environment, folder)

    def signal(self, which: signal.Signals) -> None:
        """SIGKILL goes to everything a worker started, other signals to the worker: a trainer that is to finish its
        step still needs its loader processes. A command may be a shell that passes nothing on, so it is not spared.
        """
        whole_group = which is signal.SIGKILL or self._program.kind == "command"
        for pid in self._pids.values():
            (kill_group if whole_group else kill)(pid, which)

    def close(self) -> None:
        """Print what is left to print."""
        if self._pump:
            self._pump.close()

    def folder(self, generation: int) -> Path:
        """Where the files of a generation are."""
        return self._log_dir / f"attempt_{generation}"

    def error_file(self, generation: int, local_rank: int) -> Path:
        """Torch's error file of a worker."""
        return self.folder(generation) / str(local_rank) / "error.json"

    def _start_one(self, local_rank: int, rank: int, environment: dict[str, str], folder: Path) -> None:
        with ExitStack() as ours:
            out, err = (self._sink(local_rank, rank, stream, folder, ours) for stream in (Std.OUT, Std.ERR))
            pid = self._children.start(
                self._program.command(local_rank),
                environment,
                lambda returncode: self._ended(local_rank, pid, returncode),
                stdout=out,
                stderr=err,
            )
        self._pids[local_rank] = pid

    def _ended(self, local_rank: int, pid: int, returncode: int) -> None:
        if self._pids.get(local_rank) == pid:
            del self._pids[local_rank]
        self._exited(local_rank, returncode)

    def _sink(self, local_rank: int, rank: int, stream: Std, folder: Path, ours: ExitStack) -> int | None:
        """Where a worker writes a stream; None for where we write ours."""
        is_out = stream is Std.OUT
        to_file, to_console = self._logs.of(local_rank, stream)
        file = folder / str(local_rank) / ("stdout.log" if is_out else "stderr.log")
        filters = self._logs.stdout_filters if is_out else self._logs.stderr_filters
        if not to_file and not filters:
            return None if to_console else _opened(os.open(os.devnull, os.O_WRONLY), ours)
        if to_file and not to_console and not filters:
            return _opened(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), ours)
        self._pump = self._pump or LogPump()
        prefix = Template(self._logs.prefix).safe_substitute(
            role_name=self._launch.role, local_rank=local_rank, rank=rank
        )
        sink = self._pump.add(
            console=(1 if is_out else 2) if to_console else None,
            prefix=prefix,
            file=file if to_file else None,
            filters=filters,
            filtered=folder / ("filtered_stdout.log" if is_out else "filtered_stderr.log"),
        )
        return _opened(sink, ours)


def _opened(descriptor: int, ours: ExitStack) -> int:
    ours.callback(os.close, descriptor)
    return descriptor
