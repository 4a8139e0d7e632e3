"""Agent of a pod, on one event loop and without polling. :class:`Agent` passes messages of the store, worker exits,
signals and timers to :class:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine` and carries out the actions that
it returns.

The death of a worker in this file, from top to bottom: :class:`~ddp_trainer.launch.workers.children.Children` reaps it.
``_on_worker_exit`` makes its failure, reports it and passes it to the state machine. ``_do`` sends the failure to the
store and stops the other workers. When the last of them has exited, ``_rejoin`` joins the rendezvous. ``on_message``
receives the next generation, ``_record`` reports it, and
:class:`~ddp_trainer.launch.agent.worker_start.Starting` starts its workers.

At the end of a run its nodes exit together (:class:`ExitBarrier`). The first pod that exits for good ends the job in
Kubernetes. Kubernetes then deletes the running pods, with their logs and with metrics that were not scraped yet. So
:class:`ExitBarrier` sends Leave after the agent's final reports, and waits for the store's Part. The store sends Part
when all agents have sent Leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import Exit, FailureReason, GroupState, LifecycleEvent, OutsideReason, RestartCause
from ddp_trainer.launch import failures
from ddp_trainer.launch.agent.agent_config import AgentConfig
from ddp_trainer.launch.agent.agent_state import State
from ddp_trainer.launch.agent.final_goodput import counts_steps, job_startup, last_account, last_step
from ddp_trainer.launch.agent.node_checks import GpuProbes, JoinPreflight
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy
from ddp_trainer.launch.agent.worker_start import Starting
from ddp_trainer.launch.hang.watchdog import HangGuard
from ddp_trainer.launch.host.compile_cache import compile_cache_variables
from ddp_trainer.launch.host.endpoint import reserve_port
from ddp_trainer.launch.host.environment import common_environment
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.actions import (
    Action,
    CancelTimer,
    Enter,
    Finish,
    PrepareWorkers,
    ProbeGpus,
    RegroupWorkers,
    Rejoin,
    Send,
    SetTimer,
    SignalWorkers,
    StartForkServer,
    StartWorkers,
    Timer,
)
from ddp_trainer.launch.protocol.console import log_line
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.lifecycle_times import LifecycleTimes
from ddp_trainer.launch.rendezvous import waiting_messages
from ddp_trainer.launch.rendezvous.transport import Link
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.fork_server import ForkServer, read_modules
from ddp_trainer.launch.workers.logs import Std
from ddp_trainer.launch.workers.worker_group import Workers
from ddp_trainer.process.recorder import RendezvousResult
from ddp_trainer.process.worker_protocol import LayoutReport, Left, Message, Reusable

PART_SECONDS: Final = 620.0
"""Seconds to wait for Part; more than the final reports of any other node take."""


class ExitBarrier:
    """Exit barrier of one agent."""

    def __init__(self) -> None:
        self._is_over = False
        self._may_go = asyncio.Event()

    def on_message(self, message: messages.FromStore) -> None:
        """Handle a message of the store."""
        if isinstance(message, messages.Over):
            self._is_over = True
        elif isinstance(message, messages.Part):
            self._may_go.set()

    def stop_waiting(self) -> None:
        """Stop waiting for the other nodes: the store is gone, or this agent received a signal to stop."""
        if self._is_over:
            self._may_go.set()

    async def wait(self, send: Callable[[messages.FromAgent], None]) -> None:
        """Wait until all nodes may exit; do not wait if the run continues on other nodes."""
        if self._is_over:
            send(messages.Leave())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._may_go.wait(), PART_SECONDS)


CANNOT_EXECUTE: Final = 126
"""Exit code of a shell that cannot start a program."""


class Agent:
    """Agent of one pod and listener of the link to the store. :meth:`run` is its main entry point."""

    def __init__(
        self, setup: AgentConfig, link: Link, children: Children, before_exit: Callable[[], Awaitable[None]]
    ) -> None:
        """Initialize the agent.

        Args:
            setup: Configuration of this agent.
            link: Connection to the store.
            children: Child processes of this launcher.
            before_exit: Awaited when the run is over for good and no other pod will publish this pod's metrics.
        """
        self._setup, self._core = setup, setup.core
        self._link, self._children = link, children
        self._before_exit = before_exit
        self._exit_barrier = ExitBarrier()
        self._loop = asyncio.get_running_loop()
        self._finished: asyncio.Future[Finish] = self._loop.create_future()
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._port: socket.socket | None = None
        self._joined_at = self._started_at = time.monotonic()
        self._joining_since = time.time()
        self._outside: tuple[OutsideReason | None, float] | None = None
        self._moments = LifecycleTimes()
        self._script = _version_of(setup.program.target)
        self._troubles: set[str] = set()
        self._imports: messages.WorkerImports | None = None
        """Modules that workers of this node have imported. Node 0 sends them to the store."""
        self._succeeded: messages.Succeeded | None = None
        """The message with the summary, which node 0 sends again to a store that has restarted."""
        self._restarts: dict[str, int] | None = None
        self._reported_failure: messages.Failure | None = None
        self._guard = self._build_guard()
        self._hang_page = self._guard.status_server(setup.environment)
        environment = common_environment(setup.environment, setup.launch) | compile_cache_variables(
            setup.environment, log_line
        )
        self._workers = self._build_workers(environment)
        if counts_steps(setup):
            self._core.is_before_first_step = lambda: setup.recorder.highest_step() == 0
        self._core.worker_stop.longest_step = self._guard.longest_step
        self._core.worker_stop.stuck = self._guard.unresponsive_ranks
        self._failures = failures.FailureBuilder(
            setup.core.node.name, setup.environment, self._workers.error_file, self._workers.last_lines
        )
        self._starting = self._build_starting(environment)
        self._core.is_importing = self._starting.is_importing
        self._probes = GpuProbes(
            setup,
            children,
            environment,
            self._starting.preflight,
            lambda trouble: self._do(self._core.on_probe_result(trouble)),
        )
        self._joining = JoinPreflight(
            setup.core, self._starting.preflight, self._starting.interface_variables, link.send, log_line
        )

    def _build_guard(self) -> HangGuard:
        return HangGuard(
            policy=self._setup.hangs,
            folder=self._setup.heartbeat_dir,
            node=self._core.node.name,
            send=self._link.send,
            kill=self._kill,
            log=log_line,
            stalled=self._setup.recorder.stalled,
        )

    def _build_workers(self, environment: Mapping[str, str]) -> Workers:
        setup, fork_server = self._setup, None
        if setup.preload is not None:
            parent = setup.previous_launcher.parent
            fork_server = ForkServer(self._children, setup.program.python, setup.preload, environment, parent)
        return Workers(
            children=self._children,
            program=setup.program,
            launch=setup.launch,
            logs=setup.logs,
            log_dir=setup.log_dir,
            environment=environment,
            fork_server=fork_server,
            exited=self._on_worker_exit,
            heartbeat_page=self._guard.prepare,
            on_message=self._on_worker_message,
        )

    def _build_starting(self, environment: Mapping[str, str]) -> Starting:
        return Starting(
            self._setup,
            self._children,
            self._workers,
            self._guard,
            self._moments,
            environment,
            self._on_worker_exit,
            lambda why: self._do_one(Finish(CANNOT_EXECUTE, why)),
            lambda: self._do(self._core.on_imports_changed()),
            self._send_imports,
        )

    async def run(self) -> int:
        """Run until the run is over for this pod, and return the exit code. Raise the first error of a callback."""
        self._loop.set_exception_handler(self._on_loop_error)
        for which in self._setup.signals:
            self._loop.add_signal_handler(which, self._on_signal, which)
        for which in {signal.SIGUSR1, signal.SIGUSR2}.difference(self._setup.signals):
            self._loop.add_signal_handler(which, self._pass_on, which)
        self._setup.previous_launcher.report(self._setup.recorder)
        checks_health = self._setup.care is not PreflightPolicy.OFF
        is_suspect = self._setup.report.has_previous_failure(of_any_kind=checks_health)
        self._starting.import_first()
        self._do(self._core.begin(prepares=self._setup.prepares, is_suspect=is_suspect, checks_health=checks_health))
        self._link.start(self)
        await self._hang_page.start()
        finish = await self._finished
        self._setup.previous_launcher.launcher_ended()
        await self._hang_page.close()
        if finish.code != Exit.SUCCESS:
            self._children.kill_orphans()
        self._starting.end()
        self._workers.close()
        if self._port:
            self._port.close()
        self._report_outcome(finish)
        if finish.code < Exit.SIGNAL_BASE:
            await self._before_exit()
            await self._exit_barrier.wait(self._link.send)
        await self._link.close()
        return finish.code

    # ------------------------------------------------------------------ what happens on this node

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the launcher with the error of a callback: the state machine has lost an event and might wait for it
        forever. Errors of tasks, each of which serves one request, and errors after the end are only printed.
        """
        if "handle" in context and "exception" in context and not self._finished.done():
            self._finished.set_exception(context["exception"])
        else:
            loop.default_exception_handler(context)

    def _on_signal(self, which: signal.Signals) -> None:
        self._exit_barrier.stop_waiting()
        self._do(self._core.on_signal(which))

    def _pass_on(self, which: signal.Signals) -> None:
        """Send a signal that means nothing to the launcher to the workers that handle it; it would end the others."""
        handling = self._workers.handling(which)
        self._workers.signal(which, handling)
        if not handling:
            log_line(f"{which.name} was not passed on, because no worker handles it.")

    def _fire(self, timer: Timer) -> None:
        actions = self._core.on_timer(timer)
        if timer is Timer.KILL:
            for action in actions:
                if isinstance(action, SignalWorkers):
                    self._log_kill(action.local_ranks)
        self._do(actions)

    def _log_kill(self, local_ranks: Collection[int] | None) -> None:
        if late := [rank for rank in self._workers.alive if local_ranks is None or rank in local_ranks]:
            ranks = ", ".join(map(str, late))
            log_line(f"Killing what did not stop in time: local {'rank' if len(late) == 1 else 'ranks'} {ranks}.")

    def _on_worker_message(self, local_rank: int, message: Message) -> None:
        """Handle a message of a worker that can outlive its group."""
        group = self._core.generation
        match message:
            case Reusable():
                self._do(self._core.set_reusable(local_rank, able=message.able))
            case LayoutReport():
                self._failures.parallel = message.parallel
            case Left() if message.generation in {0, group.number if group else 0}:
                failure = self._failures.left(group, local_rank, message) if message.generation else None
                if failure:
                    self._setup.recorder.collective_failed(local_rank, FailureReason(failure.reason))
                self._do(self._core.left(local_rank, failure, is_staying=message.stays, publishes=message.publishes))
                self._keep_failure()

    def _on_worker_exit(self, local_rank: int, returncode: int) -> None:
        """Report a worker that has ended: to the metrics, to the state machine, and in the run directory."""
        core = self._core
        failure = self._failures.ended(core.generation, local_rank, returncode)
        failure = self._guard.remove_worker(local_rank, failure)
        reason = FailureReason(failure.reason)
        if returncode and core.state is State.RUNNING:
            self._setup.recorder.failed(reason, failure.rank, failure.timestamp)
        if reason in failures.OF_A_COLLECTIVE:
            self._setup.recorder.collective_failed(local_rank, reason)
        if returncode and core.state is State.PREPARING:
            log_line(
                f"A worker that got ready without a rank ended with {failure.exit_code}; it starts again with one."
            )
        self._do(core.on_worker_exit(local_rank, failure))
        self._keep_failure()

    def _keep_failure(self) -> None:
        if self._core.failure is not self._reported_failure and self._core.failure:
            self._reported_failure = self._core.failure
            self._setup.report.keep(self._reported_failure)
            log_line(f"failed: {failures.describe_failure(self._reported_failure)}")

    # ------------------------------------------------------------------ actions

    def _do(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._do_one(action)
        self._report_outside()

    def _report_outside(self) -> None:
        """Report why this node is in no group, when that changes."""
        reason = self._core.outside_reason if self._core.state is State.JOINING else None
        if (outside := (reason, self._joining_since)) != self._outside:
            self._outside = outside
            self._setup.recorder.outside_group(*outside)

    def _do_one(self, action: Action) -> None:
        match action:
            case Send():
                self._send(action.message)
            case StartWorkers() | PrepareWorkers() | StartForkServer() | RegroupWorkers() | SignalWorkers():
                self._do_to_workers(action)
            case SetTimer():
                self._cancel_timer(action.timer)
                self._timers[action.timer] = self._loop.call_later(action.seconds, self._fire, action.timer)
            case CancelTimer():
                self._cancel_timer(action.timer)
            case Enter():
                self._enter(action.state)
            case Rejoin():
                self._rejoin()
            case ProbeGpus():
                self._probes.start(self._workers.alive)
            case Finish():
                if not self._finished.done():
                    self._finished.set_result(action)

    def _send(self, message: messages.FromAgent) -> None:
        if isinstance(message, messages.Succeeded) and self._hosts_rank_0:
            summary = self._setup.report.summary(self._known_of_run())
            message = self._succeeded = replace(message, summary=summary)
        self._link.send(message)

    def _enter(self, state: GroupState) -> None:
        self._setup.recorder.state(state)
        if state is not GroupState.RUNNING and self._guard.is_watching:
            self._guard.end()

    def _kill(self, local_rank: int) -> None:
        self._workers.signal(signal.SIGKILL, {local_rank})

    def _do_to_workers(
        self, action: StartWorkers | PrepareWorkers | StartForkServer | RegroupWorkers | SignalWorkers
    ) -> None:
        match action:
            case StartWorkers():
                self._warn_of_changed_script()
                if self._joining.pid is not None:
                    self._joining.end()
                self._record(action.generation)
                self._starting.start(action.generation)
            case PrepareWorkers():
                self._starting.prepare()
            case StartForkServer():
                self._starting.start_fork_server()
            case RegroupWorkers():
                number = self._core.generation.number if self._core.generation else 0
                self._workers.request_leave_group(action.local_ranks, number, graceful=action.graceful)
                self._loop.call_soon(self._starting.cancel)
            case SignalWorkers():
                self._workers.signal(action.signal, action.local_ranks)
                if self._starting.preflight.pid is not None:
                    self._starting.preflight.stop()
                if self._starting.held:
                    self._loop.call_soon(self._starting.cancel)

    def _warn_of_changed_script(self) -> None:
        """Print one line if the script was edited since the last workers started: ranks may then run two programs."""
        before, self._script = self._script, _version_of(self._setup.program.target)
        if before != self._script and self._setup.program.kind == "script":
            log_line(f"{self._setup.program.target} has changed meanwhile: workers that start now run the new text.")

    def _cancel_timer(self, timer: Timer) -> None:
        if handle := self._timers.pop(timer, None):
            handle.cancel()

    def _rejoin(self) -> None:
        if self._port:
            self._port.close()
        self._children.kill_orphans()
        self._port = self._reserve_port()
        self._joined_at, self._joining_since = time.monotonic(), time.time()
        self._moments.record_event(LifecycleEvent.JOINED)
        self._do(self._core.join(self._port.getsockname()[1]))

    def _reserve_port(self) -> socket.socket:
        named = self._setup.fixed_port
        try:
            return reserve_port(named)
        except OSError as error:
            if not named:
                raise
            log_line(f"Port {named} is not available ({error.strerror}), so the ranks meet at another one this time.")
            return reserve_port()

    # ------------------------------------------------------------------ the store

    def initial_messages(self, address: str) -> list[messages.FromAgent]:
        """Return the first messages to send when the link to the store is up."""
        first, *others = self._core.initial_messages(address)
        known = [message for message in (self._imports, self._succeeded) if message and self._hosts_rank_0]
        return [replace(first, clock=time.time()) if isinstance(first, messages.Hello) else first, *others, *known]

    @property
    def _hosts_rank_0(self) -> bool:
        return self._core.generation is not None and self._core.generation.node_rank == 0

    def _send_imports(self, file: Path) -> None:
        """Have the store pass on what workers of this node have imported, for nodes that join later."""
        known = messages.WorkerImports(modules=read_modules(file))
        if known != self._imports and self._hosts_rank_0:
            self._link.send(known)
        self._imports = known

    def _import_as_members(self, modules: Sequence[str]) -> None:
        """Import, before this node joins, what workers of the group have imported."""
        file = self._setup.heartbeat_dir / "imports"
        with contextlib.suppress(OSError):
            file.write_text("\n".join(modules))
            self._starting.start_fork_server(file)
            if self._starting.is_importing():
                self._do(self._core.on_imports_changed())

    def link_down(self) -> None:
        """Handle a lost link to the store."""
        self._exit_barrier.stop_waiting()
        self._do(self._core.link_down())

    def link_failed(self, why: str, reason: OutsideReason) -> None:
        """Handle a failed attempt to reach the store."""
        self._core.link_failed(why, reason)
        self._report_outside()
        self._setup.recorder.rendezvous_failed()
        is_soon = time.monotonic() - self._joined_at < waiting_messages.SILENT_SECONDS
        if self._core.state is State.JOINING and not is_soon and why not in self._troubles:
            self._troubles.add(why)
            log_line(
                f"The store at {self._core.endpoint} cannot be reached yet: {why}. {self._join_deadline_message()}"
            )

    def _join_deadline_message(self) -> str:
        left = self._core.limits.join - (time.monotonic() - self._joined_at)
        return waiting_messages.deadline_message(left, time.time())

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._troubles:
            self._troubles.add(sentence)
            log_line(sentence)

    def on_message(self, message: messages.FromStore) -> None:
        """Handle a message of the store."""
        if isinstance(message, messages.Waiting):
            least = self._core.hello.policy.min_nodes
            log_line(waiting_messages.waiting_message(message, least, self._join_deadline_message()))
        if isinstance(message, messages.OtherPolicy):
            self._log_once(waiting_messages.other_policy_message(self._core.hello.policy, message.policy))
        if isinstance(message, messages.Show | messages.HangingRanks):
            self._guard.on_message(message)
        if isinstance(message, messages.Ping) and self._hosts_rank_0:
            self._setup.recorder.rejected_connections(message.refused)
        if isinstance(message, messages.RunPreflight):
            self._joining.on_message(message)
        if isinstance(message, messages.WorkerImports):
            self._import_as_members(message.modules)
        self._exit_barrier.on_message(message)
        if self._core.hello.crash:
            self._setup.previous_launcher.clear_crash()
            self._core.hello = replace(self._core.hello, crash=None)
        self._do(self._core.on_message(message))

    def _record(self, generation: Assignment) -> None:
        recorder = self._setup.recorder
        self._moments.record_event(LifecycleEvent.FORMED)
        size, nodes = generation.world_size, generation.node_count
        # Other pods have counted the restarts before this pod joined.
        before = generation.restarts if self._restarts is None else self._restarts
        recorder.rendezvous_completed(
            RendezvousResult(
                seconds=time.monotonic() - self._joined_at,
                generation=generation.number,
                size=size,
                nodes=nodes,
                nodes_desired=self._core.hello.policy.max_nodes,
                first_rank=generation.first_rank,
                restarts_left=generation.restarts_left,
                restarts={
                    cause: more
                    for cause in RestartCause
                    if (more := generation.restarts.get(cause, 0) - before.get(cause, 0)) > 0
                },
            )
        )
        self._restarts = dict(generation.restarts)
        if self._setup.previous_launcher.is_recorded:
            self._setup.previous_launcher.record_place(generation, recorder)
        master = f"{generation.master_address}:{generation.master_port}"
        rank = generation.node_rank
        log_line(
            f"generation {generation.number}: {size} worker{'s' * (size > 1)}, node {rank} of {nodes}, master {master}"
        )

    # ------------------------------------------------------------------ the end

    def _known_of_run(self) -> dict[str, object]:
        """Return what the launcher adds to the summary of a run that has succeeded.

        ``ranks_together`` is the size of the largest process group that a local rank had, if none held all ranks.
        """
        world = self._core.generation.world_size if self._core.generation else 0
        seconds = round(time.monotonic() - self._started_at, 3)
        together = min(self._guard.largest_groups.values(), default=world)
        is_partial = 2 <= world > together and self._setup.program.kind != "command"
        partial = {"ranks_together": together} if is_partial else {}
        return {"world_size": world, "seconds": seconds, **last_step(self._setup.recorder), **partial}

    def _report_outcome(self, finish: Finish) -> None:
        setup, moments = self._setup, self._moments
        startup = job_startup(setup, moments)
        restarts = finish.restarts or self._restarts or {}
        generation = self._core.generation
        if finish.code == Exit.SUCCESS:
            known = {**self._known_of_run(), **startup}
            setup.report.succeeded(restarts, finish.summary, **known)
            if "ranks_together" in known:
                log_line(
                    f"No process group held all {known['world_size']} ranks, as far as was seen: the largest of this "
                    f"node had {known['ranks_together']}. Nodes may have done the same work; use RANK, WORLD_SIZE and "
                    "MASTER_ADDR of the environment."
                )
        elif finish.failure:
            account = {**last_account(setup, moments, finish.failure), **startup}
            setup.report.failed(finish.failure, finish.code, restarts, account)
        elif finish.code != Exit.TERMINATED:
            setup.report.ended(finish.code, finish.message, {**last_account(setup, moments, None), **startup})
        if generation:
            shown = setup.logs.of(finish.failure.local_rank if finish.failure else 0, Std.ERR)[1]
            lines = failures.lines(finish, restarts=restarts, own_stack_shown=shown, own_node=self._core.node.name)
        else:
            lines = [failures.final_message(finish)]
        for line in filter(None, lines):
            log_line(line)


def _version_of(script: str) -> tuple[int, int]:
    """Return size and time of the last change of a file; zeros if there is none."""
    try:
        status = Path(script).stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
