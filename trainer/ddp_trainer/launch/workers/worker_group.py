"""The worker processes on this node: started for a generation, kept for the next one where they can, or prepared."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.host.environment import Launch, place_in, prepared_environment, with_local_rank
from ddp_trainer.launch.protocol.messages import Assignment
from ddp_trainer.launch.workers.children import Children, kill, kill_group
from ddp_trainer.launch.workers.exit_limit import ExitLimit
from ddp_trainer.launch.workers.fork_server import ForkServer, has_torch
from ddp_trainer.launch.workers.logs import LogPump, LogSpec, Prefix, Std, Tail
from ddp_trainer.launch.workers.worker_channels import Channel
from ddp_trainer.process.worker_protocol import Begin, Ended, Message, Regroup

NOTHING: Final[Mapping[str, str]] = {}
BOOTSTRAP = Path(__file__).parents[1] / "in_worker" / "bootstrap.py"


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


@dataclass(slots=True)
class _Worker:
    """One process."""

    pid: int = 0
    channel: Channel | None = None
    """None for a command, which is none of Python's."""
    rank: int | None = None
    """None before its first generation."""
    prefixes: list[Prefix] = field(default_factory=list)
    """Of what it prints; they name its rank."""
    exit_limit: ExitLimit | None = None
    """Set when its program is over."""


class Workers:
    """Starts a worker per local rank, tells what becomes of them, and signals those that live."""

    def __init__(
        self,
        *,
        children: Children,
        program: Program,
        launch: Launch,
        logs: LogSpec,
        log_dir: Path,
        environment: Mapping[str, str],
        zygote: ForkServer | None,
        exited: Callable[[int, int], None],
        said: Callable[[int, Message], None],
        pulse_of: Callable[[int], str] = lambda _: "",
    ) -> None:
        """``exited`` is called with a local rank and a return code, negative for a signal; ``said`` with what the
        worker of a local rank says over its channel; ``pulse_of`` makes the pulse of a worker that is about to start,
        see :mod:`ddp_trainer.launch.hang.watchdog`, and returns its path.
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
        self._said = said
        self._pump: LogPump | None = None
        self._number = 0
        """Of the last generation that was started here."""
        self._folders: set[Path] = set()
        """Those that this launcher made; what others left is removed."""
        self._living: dict[int, _Worker] = {}
        self._tails: dict[int, Tail] = {}

    def start(self, generation: Assignment, more: Mapping[str, str] = NOTHING) -> None:
        """One for each local rank: those that live go on, the others are started; ``more`` is for their environment.

        Raises OSError, LaunchError.
        """
        if self._zygote:
            self._zygote.hurry(has_time=bool(self._living))
        folder = self._made_folder(generation.number)
        self._number = generation.number
        for local_rank in range(self._launch.local_world_size):
            error_file = self.error_file(generation.number, local_rank)
            error_file.unlink(missing_ok=True)
            place = {**more, **place_in(self._environment, self._launch, generation, local_rank, str(error_file))}
            rank = generation.first_rank + local_rank
            if worker := self._living.get(local_rank):
                self._go_on(worker, rank, place)
            else:
                self._start_one(local_rank, rank, {**self._environment, **place}, folder)

    def prepare(self) -> None:
        """Start one that belongs to no generation yet for each local rank without. Raises OSError, LaunchError."""
        if self._zygote:
            self._zygote.hurry(has_time=bool(self._living))
        folder = self._made_folder(self._number + 1)
        for local_rank in sorted(set(range(self._launch.local_world_size)) - self._living.keys()):
            environment = prepared_environment(self._environment, self._launch, local_rank)
            self._start_one(local_rank, None, environment, folder)

    def regroup(self, local_ranks: Collection[int], generation: int, *, graceful: bool) -> None:
        """Have these leave their group and stay."""
        for local_rank in local_ranks:
            worker = self._living.get(local_rank)
            if worker and worker.channel:
                worker.channel.send(Regroup(generation=generation, graceful=graceful))

    def signal(self, which: signal.Signals, local_ranks: Collection[int] | None = None) -> None:
        """SIGKILL goes to everything a worker started, other signals to the worker: a trainer that is to finish its
        step still needs its loader processes. A command may be a shell that passes nothing on, so it is not spared.

        All of them get it where ``local_ranks`` is None.
        """
        whole_group = which is signal.SIGKILL or self._program.kind == "command"
        for local_rank, worker in self._living.items():
            if local_ranks is None or local_rank in local_ranks:
                (kill_group if whole_group else kill)(worker.pid, which)

    @property
    def alive(self) -> list[int]:
        """Local ranks that run."""
        return sorted(self._living)

    @property
    def pids(self) -> Mapping[int, int]:
        """Process ids of those that live, by local rank."""
        return {local_rank: worker.pid for local_rank, worker in self._living.items()}

    def last_lines(self, local_rank: int) -> str:
        """Return what a worker has printed last on stderr; empty where stderr does not pass through the launcher.

        It does with ``--tee`` and with ``--duplicate-stderr-filters``, and so in every pod.
        """
        if self._pump is None or local_rank not in self._tails:
            return ""
        self._pump.catch_up()
        return str(self._tails[local_rank])

    def kill(self, local_rank: int) -> None:
        """End one of them, with all that it started."""
        if worker := self._living.get(local_rank):
            kill_group(worker.pid, signal.SIGKILL)

    @property
    def can_be_forked(self) -> bool:
        """Whether a zygote is wanted at all."""
        return self._zygote is not None and self._program.kind != "command"

    def have_torch(self) -> bool:
        """Whether a zygote would save them anything."""
        return self.can_be_forked and any(has_torch(worker.pid) for worker in self._living.values())

    def prepare_restart(self, imports: Path | None) -> None:
        """Have a zygote ready; see :meth:`ForkServer.start`."""
        if self._zygote:
            self._zygote.start(imports)

    def close(self) -> None:
        """Print what is left to print."""
        if self._zygote:
            self._zygote.stop()
        if self._pump:
            self._pump.close()

    def folder(self, generation: int) -> Path:
        """Return the folder of a generation's files, which torchrun counts from 0.

        torchrun empties and reuses a folder when the membership changes. Here each generation has its own.
        """
        return self._log_dir / f"attempt_{generation - 1}"

    def _made_folder(self, generation: int) -> Path:
        """Return the folder of a generation, which workers that got ready for it may have written to already."""
        folder = self.folder(generation)
        if folder not in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
            self._folders.add(folder)
        for local_rank in range(self._launch.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True, exist_ok=True)
        return folder

    def error_file(self, generation: int, local_rank: int) -> Path:
        """Torch's error file of a worker."""
        return self.folder(generation) / str(local_rank) / "error.json"

    def _go_on(self, worker: _Worker, rank: int, place: dict[str, str]) -> None:
        worker.rank = rank
        for prefix in worker.prefixes:
            prefix.rank = rank
        if worker.channel:
            worker.channel.send(Begin(environment=place))

    def _start_one(self, local_rank: int, rank: int | None, environment: dict[str, str], folder: Path) -> None:
        worker = _Worker(rank=rank)
        if pulse := self._pulse_of(local_rank):
            environment = {**environment, Env.PULSE: pulse}
        with ExitStack() as ours:
            out, err = (self._sink(worker, local_rank, rank, stream, folder, ours) for stream in (Std.OUT, Std.ERR))
            ended = partial(self._ended, local_rank)
            if self._program.kind != "command":
                worker.channel = Channel(partial(self._heard, local_rank, worker))
                ours.callback(worker.channel.started)
            forked = self._fork(worker, local_rank, environment, 1 if out is None else out, 2 if err is None else err)
            if forked and self._zygote:
                self._children.adopt(forked, ended)
                self._bind(forked, local_rank)
                self._zygote.release()
            worker.pid = forked or self._execute(worker, local_rank, environment, out, err)
            self._living[local_rank] = worker
            self._bind(worker.pid, local_rank)

    def _bind(self, pid: int, local_rank: int) -> None:
        """At once, while the process has but one thread, for later ones inherit it."""
        if self._launch.cpus:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, self._launch.cpus[local_rank])

    def _execute(
        self, worker: _Worker, local_rank: int, environment: dict[str, str], out: int | None, err: int | None
    ) -> int:
        passed: tuple[int, ...] = ()
        if worker.channel:
            passed = (worker.channel.theirs.fileno(),)
            environment = {**environment, Env.CHANNEL: str(passed[0])}
        command, ended = self._program.command(local_rank), partial(self._ended, local_rank)
        return self._children.start(command, environment, ended, stdout=out, stderr=err, pass_fds=passed)

    def _fork(self, worker: _Worker, local_rank: int, environment: dict[str, str], out: int, err: int) -> int | None:
        if self._zygote is None or worker.channel is None:
            return None
        request = {
            "kind": self._program.kind,
            "target": self._program.target,
            "arguments": with_local_rank(self._program.arguments, local_rank),
            "environment": environment,
            "cwd": str(Path.cwd()),
        }
        return self._zygote.fork(request, out, err, worker.channel.theirs.fileno())

    def _heard(self, local_rank: int, worker: _Worker, message: Message) -> None:
        if isinstance(message, Ended):
            worker.exit_limit = worker.exit_limit or ExitLimit(worker.pid, worker.rank, message.exit_code)
        elif self._living.get(local_rank) is worker:
            self._said(local_rank, message)

    def _ended(self, local_rank: int, returncode: int) -> None:
        worker = self._living.pop(local_rank, None)
        if worker and worker.channel:
            worker.channel.close()
        if worker and worker.exit_limit:
            returncode = worker.exit_limit.exited(returncode)
        self._exited(local_rank, returncode)

    def _sink(
        self, worker: _Worker, local_rank: int, rank: int | None, stream: Std, folder: Path, ours: ExitStack
    ) -> int | None:
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
        template = Template(self._logs.prefix).safe_substitute(
            role_name=self._launch.role, local_rank=local_rank, hostname=socket.gethostname()
        )
        prefix = Prefix(template, rank)
        worker.prefixes.append(prefix)
        if not is_out:
            self._tails[local_rank] = Tail()
        sink = self._pump.add(
            console=(1 if is_out else 2) if to_console else None,
            prefix=prefix,
            file=file if to_file else None,
            filters=filters,
            filtered=folder / ("filtered_stdout.log" if is_out else "filtered_stderr.log"),
            tail=None if is_out else self._tails[local_rank],
        )
        return _opened(sink, ours)


def _opened(descriptor: int, ours: ExitStack) -> int:
    ours.callback(os.close, descriptor)
    return descriptor
