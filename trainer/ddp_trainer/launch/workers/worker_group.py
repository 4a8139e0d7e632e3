"""Worker processes of this node.

:class:`Workers` starts them for a generation or in advance, keeps surviving ones for the next generation, routes their
output, and sends them signals. It uses :class:`~ddp_trainer.launch.workers.children.Children` and
:class:`~ddp_trainer.launch.workers.fork_server.ForkServer`. :class:`Channel` is the agent's end of the channel to one
worker, with the messages of :mod:`ddp_trainer.process.worker_protocol`. :class:`ExitLimit` limits the time of a worker
whose program is over: it prints what held the process, kills it, and replaces the return code.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from string import Template
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.host.environment import Launch, place_in, prepared_environment
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.workers.children import Children, kill, kill_group
from ddp_trainer.launch.workers.fork_server import ForkServer, has_torch
from ddp_trainer.launch.workers.logs import TAIL_LINES, LogForwarder, LogSpec, Prefix, Std
from ddp_trainer.process.process_tree import handles_signal
from ddp_trainer.process.worker_protocol import Begin, Ended, LeaveGroup, Lines, Message, encode

EXIT_SECONDS: Final = 8.0
"""Seconds from the end of a program to SIGKILL for its process."""
MOST_THREADS: Final = 32
"""Maximum number of threads in the report."""


class ExitLimit:
    """Exit time limit of one worker. Belongs to the launcher's event loop."""

    def __init__(self, pid: int, rank: int | None, exit_code: int) -> None:
        """Start the timer.

        Args:
            pid: Process id of the worker.
            rank: Rank of the worker; None before its first generation.
            exit_code: Exit code of its program.
        """
        self._pid = pid
        self._who = "A worker without a rank" if rank is None else f"Rank {rank}"
        self._exit_code = exit_code
        self._has_killed = False
        self._timer = asyncio.get_running_loop().call_later(EXIT_SECONDS, self._kill)

    def final_exit_code(self, returncode: int) -> int:
        """Stop the timer, and return the program's exit code if a signal ended its process, else ``returncode``."""
        self._timer.cancel()
        if returncode >= 0:
            return returncode
        if not self._has_killed and returncode != -signal.SIGTERM:  # which the launcher sends after a peer has failed
            log_line(
                f"{self._who} died of signal {-returncode} while it exited. Its program had ended with code "
                f"{self._exit_code}, which counts."
            )
        return self._exit_code

    def _kill(self) -> None:
        log_line(
            f"{self._who} ended with code {self._exit_code}, but its process did not exit within {EXIT_SECONDS:g} s. "
            f"The launcher kills it. Its threads:\n{threads_of(self._pid)}"
        )
        self._has_killed = True
        kill(self._pid, signal.SIGKILL)


def threads_of(pid: int) -> str:
    """Return one line per thread of a process: id, name, state, wait channel and system call."""
    tasks = sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda task: int(task.name))
    lines = [_line_of(task) for task in tasks[:MOST_THREADS]]
    return "\n".join([*lines, f"  and {len(tasks) - MOST_THREADS} more"] if len(tasks) > MOST_THREADS else lines)


def _line_of(task: Path) -> str:
    name, state = _read(task / "comm"), _read(task / "stat").rpartition(") ")[2][:1]
    system_call = _read(task / "syscall").partition(" ")[0]
    return f"  {task.name} {name}: state {state}, wchan {_read(task / 'wchan')}, system call {system_call}"


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace").strip() or "?"
    except OSError:  # the thread has ended, or the kernel does not show it
        return "?"


class Channel:
    """Channel to one worker. After an invalid message, nothing more is read from the worker."""

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        """Open the channel; ``on_message`` is called for each message, on the event loop of the caller."""
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._lines = Lines()
        self._agent_end, self.worker_end = socket.socketpair()
        self._agent_end.setblocking(False)
        self._loop.add_reader(self._agent_end, self._read)

    def send(self, message: Message) -> None:
        """Send a message. A failure is ignored: time limits detect a worker that does not react."""
        with contextlib.suppress(OSError):
            self._agent_end.send(encode(message))

    def started(self) -> None:
        """Close the agent's copy of the worker's end, after the worker has started."""
        self.worker_end.close()

    def close(self) -> None:
        """Read the last messages of a worker that has exited, and close the channel."""
        self._read()
        self._loop.remove_reader(self._agent_end)
        self._agent_end.close()
        self.worker_end.close()

    def _read(self) -> None:
        try:
            data = self._agent_end.recv(1 << 16)
            messages = self._lines.take(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        if not data:
            self._loop.remove_reader(self._agent_end)
        for message in messages:
            self._on_message(message)


NOTHING: Final[Mapping[str, str]] = {}
KEPT_GENERATIONS = 100
"""Generations whose files are kept. The others of a run that re-forms often would fill the disk."""
TRAINER = "ddp_trainer"
BOOTSTRAP = Path(__file__).parents[1] / "in_worker" / "bootstrap.py"


def with_local_rank(arguments: tuple[str, ...], local_rank: int) -> list[str]:
    """Replace ``${local_rank}``, torchrun's only macro, in the arguments of the script."""
    return [Template(argument).safe_substitute(local_rank=local_rank) for argument in arguments]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program that every worker runs."""

    kind: str
    """``script``, ``module`` or ``command``."""
    target: str
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    files: tuple[Path, ...] = ()
    """Python files that run in this order: those of a module's packages, and the program. Empty if they are unknown."""

    @property
    def is_reference_trainer(self) -> bool:
        """True for the reference trainer. Its workers can import and read samples before they have a rank."""
        return (self.kind, self.target, self.arguments[:1]) == ("module", TRAINER, ("train",))

    def command(self, local_rank: int) -> list[str]:
        """Return the command line of one worker, with the bootstrap, which makes the worker die with the launcher."""
        arguments = with_local_rank(self.arguments, local_rank)
        return [self.python, "-u", str(BOOTSTRAP), str(os.getpid()), self.kind, self.target, *arguments]


@dataclass(slots=True)
class _Worker:
    """One worker process."""

    folder: Path
    """Folder of the generation that it was started for, which has its output."""
    pid: int = 0
    channel: Channel | None = None
    """Channel to the worker; None for a command, which need not be Python."""
    rank: int | None = None
    """Global rank; None before its first generation."""
    prefixes: list[Prefix] = field(default_factory=list)
    """Prefixes of its output, which contain its rank."""
    exit_limit: ExitLimit | None = None
    """Set when its program is over."""


@dataclass(slots=True, kw_only=True, eq=False)
class Workers:
    """Worker processes of this node, one per local rank."""

    children: Children
    """Child processes of this launcher."""
    program: Program
    """Program that every worker runs."""
    launch: Launch
    """Values of the launch that workers get in their environment."""
    logs: LogSpec
    """Routes of the workers' output."""
    log_dir: Path
    """Folder of the generations' folders."""
    environment: Mapping[str, str]
    """Environment that all workers have in common."""
    fork_server: ForkServer | None
    """Fork server; None for none."""
    exited: Callable[[int, int], None]
    """Called with a local rank and a return code, negative for a signal."""
    on_message: Callable[[int, Message], None]
    """Called with a local rank and a message of its worker."""
    heartbeat_page: Callable[[int], str] = lambda _: ""
    """Creates the heartbeat page of a local rank whose worker is about to start, and returns its path. See
    :mod:`ddp_trainer.launch.hang.watchdog`.
    """
    _routes: dict[tuple[int, Std], tuple[bool, bool]] = field(default_factory=dict)
    """Local rank and stream → whether it goes to a file, and to the console."""
    _pump: LogForwarder | None = None
    _number: int = 0
    """Number of the last generation that was started here."""
    _folders: list[Path] = field(default_factory=list)
    """Folders that this launcher made and kept, oldest first. Existing folders of other launchers are removed."""
    _living: dict[int, _Worker] = field(default_factory=dict)
    _tails: dict[int, deque[bytes]] = field(default_factory=dict)

    def start(self, generation: Assignment, more: Mapping[str, str] = NOTHING) -> None:
        """Start a worker for each local rank that has none, and send the others their new place.

        Args:
            generation: Place of this node.
            more: Additional environment variables.

        Raises:
            OSError: A process or a file cannot be created.
            LaunchError: Each worker must have a GPU, and this node has too few.
        """
        folder = self._create_folder(generation.number)
        self._number = generation.number
        for local_rank in range(self.launch.local_world_size):
            error_file = self.error_file(generation.number, local_rank)
            error_file.unlink(missing_ok=True)
            place = {**more, **place_in(self.environment, self.launch, generation, local_rank, str(error_file))}
            rank = generation.first_rank + local_rank
            if worker := self._living.get(local_rank):
                self._go_on(worker, rank, place)
            else:
                self._start_one(local_rank, rank, {**self.environment, **place}, folder)

    def prepare(self, more: Mapping[str, str] = NOTHING) -> None:
        """Start a worker without a generation for each local rank that has none.

        Args:
            more: Additional environment variables.

        Raises:
            OSError: A process or a file cannot be created.
            LaunchError: Each worker must have a GPU, and this node has too few.
        """
        folder = self._create_folder(self._number + 1)
        for local_rank in sorted(set(range(self.launch.local_world_size)) - self._living.keys()):
            environment = {**prepared_environment(self.environment, self.launch, local_rank), **more}
            self._start_one(local_rank, None, environment, folder)

    def request_leave_group(self, local_ranks: Collection[int], generation: int, *, graceful: bool) -> None:
        """Request workers to leave their group and keep their process."""
        for local_rank in local_ranks:
            worker = self._living.get(local_rank)
            if worker and worker.channel:
                worker.channel.send(LeaveGroup(generation=generation, graceful=graceful))

    def handling(self, which: signal.Signals) -> set[int]:
        """Return the local ranks whose process has a handler for a signal; of a command, all."""
        return {
            local_rank
            for local_rank, worker in self._living.items()
            if self.program.kind == "command" or handles_signal(worker.pid, which)
        }

    def signal(self, which: signal.Signals, local_ranks: Collection[int] | None = None) -> None:
        """Send a signal to workers.

        SIGKILL goes to the whole process group of a worker, other signals to the worker alone: to finish its step, a
        trainer needs its data loader processes. A command may be a shell that does not forward signals, so its whole
        process group gets every signal.

        Args:
            which: Signal to send.
            local_ranks: Local ranks that get it; None for all.
        """
        signals_group = which is signal.SIGKILL or self.program.kind == "command"
        for local_rank, worker in self._living.items():
            if local_ranks is None or local_rank in local_ranks:
                (kill_group if signals_group else kill)(worker.pid, which)

    @property
    def alive(self) -> list[int]:
        """Local ranks with a running worker."""
        return sorted(self._living)

    @property
    def pids(self) -> Mapping[int, int]:
        """Local rank → process id of its running worker."""
        return {local_rank: worker.pid for local_rank, worker in self._living.items()}

    def last_lines(self, local_rank: int) -> str:
        """Return the last lines that a worker printed on stderr; empty if its stderr does not pass through the
        launcher.

        It does with ``--tee`` and with ``--duplicate-stderr-filters``, and so in every pod.
        """
        if self._pump is None or local_rank not in self._tails:
            return ""
        self._pump.catch_up()
        lines = tuple(self._tails[local_rank])  # a copy, since another thread adds to them
        return b"\n".join(lines).decode(errors="replace")

    @property
    def supports_fork_server(self) -> bool:
        """Whether a fork server can start workers of this program."""
        return self.fork_server is not None and self.program.kind != "command"

    def have_torch(self) -> bool:
        """Return whether a fork server would save time: it is enabled, and a worker has loaded torch."""
        return self.supports_fork_server and any(has_torch(worker.pid) for worker in self._living.values())

    def prepare_restart(self, imports: Path | None) -> None:
        """Start the fork server, or have it import what workers have imported; see :meth:`ForkServer.start`."""
        if self.fork_server and imports:
            self.fork_server.preload(imports)
        elif self.fork_server:
            self.fork_server.start()

    def close(self) -> None:
        """Stop the fork server, and print the remaining output."""
        if self.fork_server:
            self.fork_server.stop()
        if self._pump:
            self._pump.close()

    def folder(self, generation: int) -> Path:
        """Return the folder of a generation's files, in torchrun's numbering from 0.

        torchrun empties and reuses a folder when the membership changes. Here each generation has its own.
        """
        return self.log_dir / f"attempt_{generation - 1}"

    def _create_folder(self, generation: int) -> Path:
        """Create and return the folder of a generation. Workers that got ready for it may have written to it."""
        folder = self.folder(generation)
        if folder not in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
            self._remove_old_generations()
            self._folders.append(folder)
        for local_rank in range(self.launch.local_world_size):
            (folder / str(local_rank)).mkdir(parents=True, exist_ok=True)
        return folder

    def _remove_old_generations(self) -> None:
        """Make room for a folder. Those that living workers write to are kept in addition."""
        in_use = {worker.folder for worker in self._living.values()}
        for folder in [path for path in self._folders if path not in in_use][: 1 - KEPT_GENERATIONS]:
            shutil.rmtree(folder, ignore_errors=True)
            self._folders.remove(folder)

    def error_file(self, generation: int, local_rank: int) -> Path:
        """Return the path of a worker's torch error file."""
        return self.folder(generation) / str(local_rank) / "error.json"

    def _go_on(self, worker: _Worker, rank: int, place: dict[str, str]) -> None:
        worker.rank = rank
        for prefix in worker.prefixes:
            prefix.rank = rank
        if worker.channel:
            worker.channel.send(Begin(environment=place))

    def _start_one(self, local_rank: int, rank: int | None, environment: dict[str, str], folder: Path) -> None:
        worker = _Worker(folder=folder, rank=rank)
        if page := self.heartbeat_page(local_rank):
            environment = {**environment, Env.HEARTBEAT: page}
        with ExitStack() as stack:
            out, err = (self._sink(worker, local_rank, rank, stream, folder, stack) for stream in (Std.OUT, Std.ERR))
            ended = partial(self._ended, local_rank)
            if self.program.kind != "command":
                worker.channel = Channel(partial(self._on_message, local_rank, worker))
                stack.callback(worker.channel.started)
            forked = self._fork(worker, local_rank, environment, 1 if out is None else out, 2 if err is None else err)
            if forked and self.fork_server:
                self.children.add_child_handler(forked, ended)
                self._bind(forked, local_rank)
                self.fork_server.release()
            worker.pid = forked or self._execute(worker, local_rank, environment, out, err)
            self._living[local_rank] = worker
            self._bind(worker.pid, local_rank)

    def _bind(self, pid: int, local_rank: int) -> None:
        """Bind a worker to its processors while it has one thread, since later threads inherit the binding."""
        if self.launch.cpus:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, self.launch.cpus[local_rank])

    def _execute(
        self, worker: _Worker, local_rank: int, environment: dict[str, str], out: int | None, err: int | None
    ) -> int:
        passed: tuple[int, ...] = ()
        if worker.channel:
            passed = (worker.channel.worker_end.fileno(),)
            environment = {**environment, Env.CHANNEL: str(passed[0])}
        command, ended = self.program.command(local_rank), partial(self._ended, local_rank)
        return self.children.start(command, environment, ended, stdout=out, stderr=err, pass_fds=passed)

    def _fork(self, worker: _Worker, local_rank: int, environment: dict[str, str], out: int, err: int) -> int | None:
        if self.fork_server is None or not self.fork_server.is_running or worker.channel is None:
            return None
        request = {
            "kind": self.program.kind,
            "target": self.program.target,
            "arguments": with_local_rank(self.program.arguments, local_rank),
            "environment": environment,
            "cwd": str(Path.cwd()),
        }
        return self.fork_server.fork(request, out, err, worker.channel.worker_end.fileno())

    def _on_message(self, local_rank: int, worker: _Worker, message: Message) -> None:
        if isinstance(message, Ended):
            worker.exit_limit = worker.exit_limit or ExitLimit(worker.pid, worker.rank, message.exit_code)
        elif self._living.get(local_rank) is worker:
            self.on_message(local_rank, message)

    def _ended(self, local_rank: int, returncode: int) -> None:
        worker = self._living.pop(local_rank, None)
        if worker and worker.channel:
            worker.channel.close()
        if worker and worker.exit_limit:
            returncode = worker.exit_limit.final_exit_code(returncode)
        self.exited(local_rank, returncode)

    def _sink(
        self, worker: _Worker, local_rank: int, rank: int | None, stream: Std, folder: Path, stack: ExitStack
    ) -> int | None:
        """Return the descriptor that a worker writes a stream to; None for the launcher's own."""
        is_out = stream is Std.OUT
        if (local_rank, stream) not in self._routes:
            self._routes[local_rank, stream] = self.logs.of(local_rank, stream)
        to_file, to_console = self._routes[local_rank, stream]
        file = folder / str(local_rank) / ("stdout.log" if is_out else "stderr.log")
        filters = self.logs.stdout_filters if is_out else self.logs.stderr_filters
        if not to_file and not filters:
            return None if to_console else _close_on_exit(os.open(os.devnull, os.O_WRONLY), stack)
        if to_file and not to_console and not filters:
            return _close_on_exit(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stack)
        self._pump = self._pump or LogForwarder()
        template = Template(self.logs.prefix).safe_substitute(
            role_name=self.launch.role, local_rank=local_rank, hostname=socket.gethostname()
        )
        prefix = Prefix(template, rank)
        worker.prefixes.append(prefix)
        if not is_out:
            self._tails[local_rank] = deque(maxlen=TAIL_LINES)
        sink = self._pump.add(
            console=(1 if is_out else 2) if to_console else None,
            prefix=prefix,
            file=file if to_file else None,
            filters=filters,
            filtered=folder / ("filtered_stdout.log" if is_out else "filtered_stderr.log"),
            tail=None if is_out else self._tails[local_rank],
        )
        return _close_on_exit(sink, stack)


def _close_on_exit(descriptor: int, stack: ExitStack) -> int:
    stack.callback(os.close, descriptor)
    return descriptor
