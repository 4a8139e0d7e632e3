"""The worker processes of one generation on this node."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

from ddp_trainer.contract import Env
from ddp_trainer.launch.children import Children, kill, kill_group
from ddp_trainer.launch.environment import Launch, with_local_rank, worker_environment
from ddp_trainer.launch.logs import LogPump, LogSpec, Std
from ddp_trainer.launch.protocol import Generation
from ddp_trainer.launch.zygote import Zygote, has_torch

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
        environment: Mapping[str, str],
        zygote: Zygote | None,
        exited: Callable[[int, int], None],
        pulse_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        """``exited`` is called with a local rank and a return code, negative for a signal; ``pulse_of`` makes the pulse
        of a worker that is about to start, see :mod:`ddp_trainer.launch.hang_guard`, and returns its path.
        """
        self._children = children
        self._program = program
        self._launch = launch
        self._logs = logs
        self._log_dir = log_dir
        self._environment = environment
        self._zygote = zygote
        self._exited = exited
        self._pulse_of = pulse_of
        self._pump: LogPump | None = None
        self._pids: dict[int, int] = {}

    def start(self, generation: Generation) -> None:
        """Start them all. Raises OSError, LaunchError."""
        if self._zygote:
            self._zygote.hurry()
        folder = self.folder(generation.number)
        shutil.rmtree(folder, ignore_errors=True)
        for local_rank in range(self._launch.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True)
            environment = worker_environment(
                self._environment,
                self._launch,
                generation,
                local_rank,
                str(self.error_file(generation.number, local_rank)),
            )
            if pulse := self._pulse_of(local_rank):
                environment[Env.PULSE.value] = pulse
            self._start_one(local_rank, generation.first_rank(self._launch.token) + local_rank, environment, folder)

    def signal(self, which: signal.Signals) -> None:
        """SIGKILL goes to everything a worker started, other signals to the worker: a trainer that is to finish its
        step still needs its loader processes. A command may be a shell that passes nothing on, so it is not spared.
        """
        whole_group = which is signal.SIGKILL or self._program.kind == "command"
        for pid in self._pids.values():
            (kill_group if whole_group else kill)(pid, which)

    @property
    def alive(self) -> list[int]:
        """Local ranks that run."""
        return sorted(self._pids)

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids of those that live, by local rank."""
        return self._pids

    def kill(self, local_rank: int) -> None:
        """End one of them, with all that it started."""
        if pid := self._pids.get(local_rank):
            kill_group(pid, signal.SIGKILL)

    def have_torch(self) -> bool:
        """Whether a zygote would save them anything."""
        can_fork = self._zygote is not None and self._program.kind != "command"
        return can_fork and any(map(has_torch, self._pids.values()))

    def prepare_restart(self) -> None:
        """Have a zygote ready."""
        if self._zygote:
            self._zygote.start()

    def close(self) -> None:
        """Print what is left to print."""
        if self._zygote:
            self._zygote.stop()
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
            ended = partial(self._ended, local_rank)
            forked = self._fork(local_rank, environment, 1 if out is None else out, 2 if err is None else err)
            if forked and self._zygote:
                self._children.adopt(forked, ended)
                self._bind(forked, local_rank)
                self._zygote.release()
            command = self._program.command(local_rank)
            self._pids[local_rank] = forked or self._children.start(command, environment, ended, stdout=out, stderr=err)
            self._bind(self._pids[local_rank], local_rank)

    def _bind(self, pid: int, local_rank: int) -> None:
        """At once, while the process has but one thread, for later ones inherit it."""
        if self._launch.cpus:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, self._launch.cpus[local_rank])

    def _fork(self, local_rank: int, environment: dict[str, str], out: int, err: int) -> int | None:
        if self._zygote is None or self._program.kind == "command":
            return None
        request = {
            "kind": self._program.kind,
            "target": self._program.target,
            "arguments": with_local_rank(self._program.arguments, local_rank),
            "environment": environment,
            "cwd": str(Path.cwd()),
        }
        return self._zygote.fork(request, out, err)

    def _ended(self, local_rank: int, returncode: int) -> None:
        self._pids.pop(local_rank, None)
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
            role_name=self._launch.role, local_rank=local_rank, rank=rank, hostname=socket.gethostname()
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
