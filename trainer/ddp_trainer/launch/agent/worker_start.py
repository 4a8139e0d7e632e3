"""Start of a generation's workers in this pod, immediately or after a preflight has found the node fit.

:class:`Starting` also starts the preflight, the hang watchdog and :class:`ForkServerWatch`, which starts the
fork server, or has a running one import what workers have imported: after their imports, and not during them. If
workers restart before that, the fork server starts beside them. Otherwise a job whose workers keep failing during
imports would never get one.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Exit, LifecycleEvent
from ddp_trainer.launch.agent.agent_config import AgentConfig
from ddp_trainer.launch.agent.agent_state import State
from ddp_trainer.launch.agent.preflight_policy import Preflight, PreflightVerdict, write_error
from ddp_trainer.launch.hang.watchdog import HangGuard
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.lifecycle_times import LifecycleTimes
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.fork_server import imports_torch_first
from ddp_trainer.launch.workers.worker_group import Workers

MAX_POLLS: Final = 5
"""Polls that wait for a worker's list of imports. A worker without a process group writes none."""
SOON: Final = 0.1
"""Fraction of the pause before the first poll of workers that have restarted without a fork server."""


class ForkServerWatch:
    """Periodic poll of the workers. Surviving workers already have torch, so it continues when the group re-forms."""

    def __init__(
        self, workers: Workers, pause: float, imports: Callable[[], Path | None], on_imports: Callable[[Path], None]
    ) -> None:
        """Initialize the watch.

        Args:
            workers: Workers to poll.
            pause: Seconds between two polls.
            imports: See :meth:`HangGuard.imports`.
            on_imports: Called with this file when workers have written it.
        """
        self._loop = asyncio.get_running_loop()
        self._workers = workers
        self._is_needed = workers.supports_fork_server
        self._pause = pause
        self._imports = imports
        self._on_imports = on_imports
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0
        self._begins = 0
        """Number of times that all workers have started."""

    def begin(self, *, anew: bool) -> None:
        """Start the watch after a start of workers: of all of them if ``anew``, else of some beside surviving ones."""
        if self._is_needed and (anew or self._timer is None):
            self.end()
            self._begins += anew
            self._schedule_poll(self._pause if self._begins < 2 else SOON * self._pause)

    def end(self) -> None:
        """Stop the watch: no fork server is needed, or workers are about to start."""
        if self._timer:
            self._timer.cancel()
        self._timer, self._seen = None, 0

    def _schedule_poll(self, pause: float) -> None:
        self._timer = self._loop.call_later(pause, self._poll, pause)

    def _poll(self, pause: float) -> None:
        """Start the fork server when workers have written their list of imports, or after some polls without one.

        A list at the first poll may be one of earlier workers. After a restart of the workers, the first poll that
        finds torch starts the fork server.
        """
        if not self._workers.have_torch():
            self._schedule_poll(2 * pause)
            return
        self._seen += 1
        imports = self._imports()
        if imports and (self._seen > 1 or self._begins > 1):
            self._timer = None
            self._workers.prepare_restart(imports)
            self._on_imports(imports)
            return
        if self._begins > 1 or self._seen >= MAX_POLLS:
            self._workers.prepare_restart(None)
        self._schedule_poll(self._pause if self._seen < MAX_POLLS else 2 * pause)


LONGEST_IMPORT_SECONDS: Final = 120.0
"""Limit for the imports of a fork server that workers wait for. After it, they import by themselves."""


@dataclass(slots=True, eq=False)
class Starting:
    """Starter of the workers of one agent, for one generation after the other."""

    setup: AgentConfig
    """Configuration of the agent."""
    children: Children
    """Child processes of this launcher."""
    workers: Workers
    """Workers to start."""
    guard: HangGuard
    """Hang watchdog of the running workers."""
    moments: LifecycleTimes
    """Lifecycle times, which each worker gets in its environment."""
    environment: Mapping[str, str]
    """Environment that all workers have in common."""
    exited: Callable[[int, int], None]
    """Called with local rank and return code for workers that do not start, as if they had exited."""
    give_up: Callable[[str], None]
    """Called with the reason if no worker can be started."""
    imported: Callable[[], None]
    """Called when the fork server has imported what workers need."""
    on_imports: Callable[[Path], None]
    """Called with the file of the modules that workers have imported."""
    preflight: Preflight = field(init=False)
    """Preflight of this node."""
    _fork_server_watch: ForkServerWatch = field(init=False)
    _sockets: Mapping[str, str] = field(default_factory=dict)
    _logged: set[str] = field(default_factory=set)
    held: Callable[[], None] | None = None
    """Start of workers that waits for the fork server."""

    def __post_init__(self) -> None:
        setup, size = self.setup, self.setup.launch.local_world_size
        script = setup.program.target if setup.program.kind == "script" else ""
        self.preflight = Preflight(self.children, setup.care, size, script, setup.log_dir, self.environment)
        self._fork_server_watch = ForkServerWatch(
            self.workers, setup.fork_server_delay / 2, self.guard.imports, self.on_imports
        )

    def prepare(self) -> None:
        """Start workers that get ready without a generation."""
        self._after_imports(partial(self._try, partial(self.workers.prepare, self.moments.environment)))

    def is_importing(self) -> bool:
        """Return whether the fork server still imports what the first workers of this node need."""
        fork_server = self.workers.fork_server
        return fork_server is not None and fork_server.is_importing and not self.workers.alive

    def import_first(self) -> None:
        """Start the fork server before the first workers if their program begins with torch, or if several of them run
        the reference trainer. A single worker of it starts faster alone, since it imports less.
        """
        program = self.setup.program
        is_shared = program.is_reference_trainer and self.setup.launch.local_world_size > 1
        if is_shared or imports_torch_first(program.files):
            self.start_fork_server()

    def start_fork_server(self, imports: Path | None = None) -> None:
        """Start the fork server before there are workers, with the imports of their program or of a list."""
        fork_server, program = self.workers.fork_server, self.setup.program
        if fork_server and self.workers.supports_fork_server and not self.workers.alive:
            has_imports = bool(program.files) and program.files[-1].suffix == ".py"
            fork_server.start(program.files[-1] if has_imports else imports, has_workers=False)
            if imports:
                fork_server.preload(imports)
            if fork_server.is_importing:
                fork_server.call_when_ready(self.imported)

    def cancel(self) -> None:
        """Report workers as ended whose start waits for the fork server."""
        if self.held:
            self.held = None
            for local_rank in set(range(self.setup.launch.local_world_size)).difference(self.workers.alive):
                self.exited(local_rank, -signal.SIGTERM)

    def _after_imports(self, start: Callable[[], None]) -> None:
        """Start workers now, or when the fork server can fork them: its imports end before their own would.

        Living workers get their place immediately, since the ranks of other nodes wait for them.
        """
        fork_server, size = self.workers.fork_server, self.setup.launch.local_world_size
        if fork_server is None or not fork_server.is_importing or len(self.workers.alive) == size:
            start()
            return
        self.moments.record_event(LifecycleEvent.IMPORTING)
        self.held = start
        limit = asyncio.get_running_loop().call_later(LONGEST_IMPORT_SECONDS, fork_server.stop)

        def on_ready() -> None:
            limit.cancel()
            if self.held is start:
                self.held = None
                self._after_imports(start)

        fork_server.call_when_ready(on_ready)

    def start(self, generation: Assignment) -> None:
        """Start the workers of this pod, after the preflight if they must wait for it."""
        self._sockets = self.interface_variables(generation)
        needs_preflight = self.preflight.is_due and self.preflight.holds_up(generation)
        self._try(partial(self._start_preflight if needs_preflight else self._start_now, generation))
        if self.preflight.is_due:
            # The other nodes train already and wait for these ranks. They must not wait for a check of this node too.
            with contextlib.suppress(OSError):
                self.preflight.start(generation, lambda _: None, self._sockets)

    def interface_variables(self, generation: Assignment) -> Mapping[str, str]:
        """Return the environment variables for the network interfaces to other nodes, and print each new choice
        once.
        """
        if generation.node_count == 1:
            return {}
        from ddp_trainer.launch.host.network_interface import select_interface  # noqa: PLC0415 - one node alone does without ctypes

        sockets = select_interface(self.environment, generation)
        if sockets.message and sockets.message not in self._logged:
            self._logged.add(sockets.message)
            log_line(sockets.message)
        return sockets.environment

    def end(self) -> None:
        """Stop the start of fork servers."""
        self._fork_server_watch.end()

    def _try(self, start: Callable[[], None]) -> None:
        try:
            start()
        except Exception as error:  # noqa: BLE001 - whatever a peer has sent, this pod must not keep its GPUs for nothing
            self.workers.signal(signal.SIGKILL)
            self.give_up(f"The workers could not be started: {error}")

    def _start_now(self, generation: Assignment) -> None:
        self._after_imports(partial(self._try, partial(self._start_workers, generation)))

    def _start_workers(self, generation: Assignment) -> None:
        self._fork_server_watch.begin(anew=not self.workers.alive)
        self.workers.start(generation, {**self._sockets, **self.moments.environment})
        first_rank = generation.first_rank
        self.guard.begin(generation, first_rank, self.workers.pids, self.workers.folder(generation.number))

    def _start_preflight(self, generation: Assignment) -> None:
        self.preflight.start(generation, partial(self._on_preflight_end, generation), self._sockets)

    def _on_preflight_end(self, generation: Assignment, outcome: PreflightVerdict) -> None:
        """Start the workers after the preflight, or report them as exited: the state machine counts them as started."""
        number, stopped = generation.number, self.setup.core.state is not State.RUNNING
        if outcome.may_start and not stopped:
            self._try(partial(self._start_now, generation))
            return
        if not stopped:
            write_error(self.workers.error_file(number, 0), outcome.message)
        for local_rank in range(self.setup.launch.local_world_size):
            is_first = local_rank == 0 and not stopped
            self.exited(local_rank, int(Exit.NOT_FIT) if is_first else -signal.SIGTERM)
