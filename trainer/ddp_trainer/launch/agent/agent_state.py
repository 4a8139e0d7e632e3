"""State machine of an agent: :class:`AgentStateMachine` takes events and returns actions. It has no process, no socket
and no clock; :class:`~ddp_trainer.launch.agent.agent.Agent` carries out the actions.

::

    PREPARING (only if the program can) ◀── STOPPING, if workers that could have stayed
       │ workers ready, or exited            have exited and the group can run without this node
       ▼     Start                     all workers exited 0
    JOINING ───────▶ RUNNING ─────────────────────────────────▶ DONE
       ▲                │ a worker failed, Stop, Over, a signal    │ Stop: JOINING
       │                ▼                                          │ Over: OVER
       └──────────── STOPPING ──▶ OVER ◀───────────────────────────┘
        no worker busy            (the cause of the stop decides)
        (After a GPU fault, and with --preflight after any failure of a worker of this node, the agent first
        checks the GPUs. It enters OVER if one is not fit.)

A worker is *busy* from its start until it exits. A worker that is *able* to outlive its group is busy only until it has
left the group. Then it is *idle* and joins the next generation, or it is *parting*: it was told to end and is still
saving. The agent stops workers that are not able, or do not leave in time.

The link to the store may be down at any time, which has no effect on running workers. :meth:`AgentStateMachine.opening`
sends again what the store must have received. Messages are not queued.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from ddp_trainer.common.constants import Exit, FailureReason, GroupState
from ddp_trainer.launch.failures.failure_reason import is_of_a_gpu, is_primary_failure, root_cause
from ddp_trainer.launch.failures.stop_codes import AS_ASKED, finish_of
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
    StartWorkers,
    Timer,
)
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import (
    Failed,
    Failure,
    FromAgent,
    FromStore,
    HangingRanks,
    Hello,
    Join,
    Leave,
    Over,
    Part,
    Ping,
    Prepare,
    Rejected,
    ReusableWorkers,
    RunPreflight,
    Show,
    StandBy,
    Start,
    Stop,
    Succeeded,
    Waiting,
    WorkerState,
)
from ddp_trainer.launch.rendezvous import waiting_messages


class State(Enum):
    """State of the agent."""

    PREPARING = auto()
    JOINING = auto()
    RUNNING = auto()
    STOPPING = auto()
    DONE = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of the agent, in seconds."""

    join: float = 600.0
    """Limit of the wait for a generation, whether the store is reachable or not."""
    shutdown: float = 30.0
    """Time between SIGTERM and SIGKILL if no peer is lost: the workers finish their step and save."""
    failure: float = 3.0
    """Time between SIGTERM and SIGKILL if a peer is dead: the remaining workers are stuck in a collective or about to
    fail. Surviving workers get longer if they may be busy with a longer step.
    """
    prepare: float = 60.0
    """Limit for workers that get ready before they have a generation. After it, they start with their generation."""


TOLD_TO_STOP: Final = Finish(Exit.TERMINATED)


class AgentStateMachine:
    """State machine of one agent. Every method takes an event and returns the resulting actions, in order."""

    def __init__(self, *, hello: Hello, limits: Limits, endpoint: str) -> None:
        """Initialize the state machine.

        Args:
            hello: First message of this agent, before any event.
            limits: Time limits.
            endpoint: Endpoint of the store, for messages.
        """
        self.state = State.JOINING
        self.node = hello.node
        self.generation: Assignment | None = None
        self.failure: Failure | None = None
        """First failure of this agent's workers in this generation."""
        self.unfit = ""
        """Finding of the join preflight that keeps this node out of the run; empty if there is none."""
        self.longest_step: Callable[[AbstractSet[int]], float] = lambda _: limits.failure
        """Return the seconds that these local ranks may be busy with work that cannot be interrupted, from the hang
        watchdog.
        """
        self.stuck: Callable[[AbstractSet[int]], AbstractSet[int]] = lambda _: frozenset()
        """Return those of these local ranks that cannot continue without help."""
        self._finished_first: Failure | None = None
        self._hello = hello
        self._policy = hello.policy
        self._limits = limits
        self._endpoint = endpoint
        self._port = 0
        self._alive: set[int] = set()
        self._able: set[int] = set()
        self._idle: set[int] = set()
        self._parting: set[int] = set()
        self._publishing: set[int] = set()
        self._ending: Finish | None = None
        """What to do when the workers are gone; None to join again."""
        self._outlives = False
        """True if its workers can outlive their group, including those that have exited since."""
        self._prepares = self._checks_health = False
        self._is_probing = False
        """True while the GPUs of this node are checked; the node joins afterwards."""
        self._is_graceful = True
        self._hurry = limits.failure
        """Seconds from a loss to SIGKILL. A surviving worker that computes notices the loss only after its step."""
        self._patience = 0.0
        """Seconds to SIGKILL, from when the timer was last armed."""
        self._link_up = False
        self._waiting: Waiting | None = None
        self._trouble = ""

    # ------------------------------------------------------------------ the store

    def initial_messages(self, address: str) -> list[FromAgent]:
        """Return the messages to send when the link is up: Hello, and everything that the store may have missed.

        Args:
            address: Local address of the connection.
        """
        self._link_up = True
        if not self.node.address:
            self.node = replace(self.node, address=address)
        standing = {
            State.RUNNING: WorkerState.RUNNING,
            State.STOPPING: WorkerState.RUNNING,
            State.DONE: WorkerState.SUCCEEDED,
        }
        hello = replace(
            self._hello,
            node=self.node,
            standing=standing.get(self.state, WorkerState.IDLE),
            last=self.generation,
            outlive=self._all_reusable(),
        )
        messages: list[FromAgent] = [hello]
        if self.state is State.JOINING and not self._is_probing:
            messages.append(self._join())
        if (self._is_probing or self.state in {State.STOPPING, State.PREPARING}) and self.failure:
            messages.append(Failed(failure=self.failure))
        if (self.state is State.PREPARING or (self._is_probing and self._prepares)) and self.generation:
            messages.append(StandBy(generation=self.generation.number))
        if self._ending is TOLD_TO_STOP:
            messages.append(Leave())
        return messages

    def link_down(self) -> list[Action]:
        """Handle a lost link: limit the time to reach the store again if this node is joining."""
        if not self._link_up:
            return []  # the peer was not a store of this run and must not extend the time limit
        self._link_up = False
        self._waiting = None
        return [SetTimer(Timer.JOIN, self._limits.join)] if self.state is State.JOINING else []

    def link_failed(self, why: str) -> None:
        """Record why an attempt to reach the store failed."""
        self._trouble = why

    def on_message(self, message: FromStore) -> list[Action]:
        """Handle a message of the store."""
        self._trouble = ""
        match message:
            case Start():
                return self._start(message.assignment)
            case Stop():
                return self._stop_for_next(graceful=message.graceful)
            case Over():
                return self._end_with(finish_of(message))
            case Rejected():
                return self._end_with(Finish(message.exit_code, message.why))
            case Waiting() | Prepare():
                return self._wait(message)
            case Show() | HangingRanks() | RunPreflight() | Ping() | Part():
                return []

    def _wait(self, message: Waiting | Prepare) -> list[Action]:
        """Handle that the store has no place for this node yet."""
        if self._is_probing:
            return []
        if isinstance(message, Prepare):
            # The store waits for another Join, also if some or all workers of this node got ready meanwhile.
            is_ready = self._join().is_prepared
            return [] if self.state is not State.JOINING else [Send(self._join())] if is_ready else self.prepare()
        self._waiting = message
        return [CancelTimer(Timer.JOIN)] if message.spare else []

    # ------------------------------------------------------------------ joining

    def prepare(self) -> list[Action]:
        """Start workers that get ready for a generation before this node joins, so that the group does not wait for
        them.
        """
        self.state = State.PREPARING
        self._alive = set(range(self.node.local_world_size))
        return [Enter(GroupState.STARTING), PrepareWorkers(), SetTimer(Timer.KILL, self._limits.prepare)]

    def begin(self, *, prepares: bool, is_suspect: bool, checks_health: bool = False) -> list[Action]:
        """Return the first actions of the agent. On a suspect node it checks the GPUs first.

        Args:
            prepares: Workers can get ready before there is a generation.
            is_suspect: A worker failed in an earlier container of this pod.
            checks_health: GPUs are suspect after any failure of a worker of this node, not only after a GPU fault.
        """
        self._prepares, self._checks_health = prepares, checks_health
        return self._probe() if is_suspect else self._begin()

    def _begin(self) -> list[Action]:
        return self.prepare() if self._prepares else [Rejoin()]

    def _probe(self) -> list[Action]:
        """Check the GPUs in state JOINING: as during a join, a Stop or a signal finds no worker to stop."""
        self.state, self._is_probing = State.JOINING, True
        return [ProbeGpus()]

    def on_gpus_probed(self, trouble: str) -> list[Action]:
        """Handle the end of the GPU checks: join, or leave the run.

        Args:
            trouble: Sentence about a GPU that does not work; empty if all work.
        """
        if not self._is_probing or self.state is State.OVER:
            return []
        self._is_probing = False
        if not trouble:
            return self._begin()
        failure = self.failure and replace(self.failure, reason=FailureReason.GPU_FAULT, message=trouble)
        return [Send(Leave()), *self._end_with(Finish(Exit.GPU_FAULT, "" if failure else trouble, failure))]

    def join(self, port: int) -> list[Action]:
        """Join the rendezvous, when no worker is busy.

        Args:
            port: Port reserved for the next generation.
        """
        self.state = State.JOINING
        self._port = port
        self._waiting = None
        return [Enter(GroupState.RENDEZVOUS), SetTimer(Timer.JOIN, self._limits.join), Send(self._join())]

    def _join(self) -> Join:
        return Join(port=self._port, is_prepared=len(self._idle) == self.node.local_world_size)

    def _start(self, generation: Assignment) -> list[Action]:
        if self.state is not State.JOINING or self._is_probing:
            return []
        self.state = State.RUNNING
        self.generation = generation
        self.failure = self._finished_first = None
        self._is_graceful = True
        self._alive = set(range(self.node.local_world_size))
        self._idle.clear()
        return [
            CancelTimer(Timer.JOIN),
            Enter(GroupState.STARTING),
            StartWorkers(generation),
            Enter(GroupState.RUNNING),
        ]

    # ------------------------------------------------------------------ workers

    @property
    def _active_workers(self) -> set[int]:
        return self._alive - self._idle - self._parting

    def set_reusable(self, local_rank: int, *, able: bool = True) -> list[Action]:
        """Handle a worker that can outlive its group from now on, or can no longer."""
        self._outlives = able
        could = self._all_reusable()
        actions: list[Action] = []
        if able and local_rank in self._alive:
            self._able.add(local_rank)
        elif local_rank in self._able:
            self._able.discard(local_rank)
            if self.state is State.STOPPING:
                actions.append(SignalWorkers(signal.SIGTERM, frozenset({local_rank})))
        return actions if could is self._all_reusable() else [*actions, Send(ReusableWorkers(able=able))]

    def _all_reusable(self) -> bool:
        return len(self._able) == self.node.local_world_size

    def left(
        self, local_rank: int, failure: Failure | None, *, stays: bool = True, publishes: bool = False
    ) -> list[Action]:
        """Handle a worker that has left its group.

        Args:
            local_rank: Local rank of the worker.
            failure: What the process would have ended with; None if it was in no group yet.
            stays: The worker waits for the next group; False if it ends and is still saving.
            publishes: Other nodes need what the worker saves.
        """
        if local_rank not in self._able:
            return []
        (self._idle if stays else self._parting).add(local_rank)
        if not stays:
            self._able.discard(local_rank)
        if publishes:
            self._publishing.add(local_rank)
        if self._ending is TOLD_TO_STOP and self.state is State.STOPPING:
            return [] if self._active_workers | self._publishing else [Send(Leave(has_left=True))]
        return self._on_worker_idle(failure, agreed=failure is not None and failure.exit_code == Exit.TERMINATED)

    def on_worker_exit(self, local_rank: int, failure: Failure | None) -> list[Action]:
        """Handle a worker that has exited.

        Args:
            local_rank: Local rank of the worker.
            failure: How it failed. A failure with exit code 0 counts only if others fail without this worker.
        """
        if failure and failure.exit_code == Exit.SUCCESS:
            self._finished_first, failure = self._finished_first or failure, None
        could = self._all_reusable()
        for group in (self._alive, self._able, self._idle, self._parting, self._publishing):
            group.discard(local_rank)
        # The worker that replaces it reports by itself whether it can outlive a group.
        lost: list[Action] = [Send(ReusableWorkers(able=False))] if could else []
        return [*lost, *self._on_worker_idle(failure)]

    def _on_worker_idle(self, failure: Failure | None, *, agreed: bool = False) -> list[Action]:
        """Handle a worker that left or exited; ``agreed`` if all ranks ended their group together and none is stuck."""
        if self.state in {State.PREPARING, State.JOINING}:
            return self._rejoin_if_prepared()
        actions: list[Action] = []
        if failure and not (self.state is State.STOPPING and failure.exit_code in AS_ASKED):
            first = root_cause(self.failure, failure)
            first = root_cause(first, self._finished_first) if self._finished_first else first
            if first is not self.failure and self._ending is None:
                actions.append(Send(Failed(failure=first, agreed=agreed)))
            self.failure = first
        if self.state is State.RUNNING and failure:
            actions += self._stop(graceful=agreed)
        elif self.state is State.RUNNING and not self._alive and self.generation:
            self.state = State.DONE
            actions += [Enter(GroupState.SUCCEEDED), Send(Succeeded(generation=self.generation.number))]
        elif self.state is State.STOPPING and self._has_stopped():
            actions += self._stopped()
        return actions

    def _rejoin_if_prepared(self) -> list[Action]:
        """Join when no worker is getting ready. One that exited meanwhile starts again with its generation."""
        if self.state is State.PREPARING and not self._active_workers:
            return [CancelTimer(Timer.KILL), Rejoin()]
        return []

    def _stop(self, *, graceful: bool) -> list[Action]:
        self.state = State.STOPPING
        self._is_graceful = graceful
        self._hurry = max(self._limits.failure, self._longest_survivor_step())
        actions: list[Action] = [CancelTimer(Timer.JOIN), Enter(GroupState.STOPPING)]
        if self._has_stopped():
            return actions + self._stopped()
        return [
            *actions,
            *self._request_stop(graceful=graceful),
            self._set_kill_timer(self._limits.shutdown if graceful else self._hurry),
        ]

    def _longest_survivor_step(self, *, besides: frozenset[int] = frozenset()) -> float:
        survivors = frozenset(self._able & self._active_workers) - besides
        return self.longest_step(survivors) if survivors else 0.0

    def _set_kill_timer(self, patience: float) -> SetTimer:
        """Give workers this many seconds to stop, and check for stuck workers on the way."""
        self._patience = patience
        return SetTimer(Timer.KILL, min(patience, self._limits.failure))

    def _request_stop(self, *, graceful: bool) -> list[Action]:
        """Request all workers to stop. Workers that stay for the next group only leave the current one."""
        staying = frozenset(self._able & self._active_workers) if self._ending is None else frozenset()
        actions: list[Action] = [RegroupWorkers(staying, graceful)] if staying else []
        if not staying:
            actions.append(SignalWorkers(signal.SIGTERM))
        elif going := frozenset(self._active_workers - staying):
            actions.append(SignalWorkers(signal.SIGTERM, going))
        return actions

    def _has_stopped(self) -> bool:
        return not (self._active_workers | self._parting if self._ending is None else self._alive)

    def _stopped(self) -> list[Action]:
        """Continue with the purpose of the stop, when no worker is busy or none is left."""
        if self._ending is not None:
            return [CancelTimer(Timer.KILL), *self._over(self._ending)]
        self._prepares = self.generation is not None and self._can_shrink_group(self.generation)
        aside = [Send(StandBy(generation=self.generation.number))] if self._prepares and self.generation else []
        return [CancelTimer(Timer.KILL), *aside, *(self._probe() if self._is_suspect() else self._begin())]

    def _is_suspect(self) -> bool:
        failure = self.failure
        if failure is None or failure.exit_code == Exit.NOT_FIT:
            return False  # a preflight has checked the node already
        return is_of_a_gpu(failure) or (self._checks_health and is_primary_failure(failure.reason))

    def _can_shrink_group(self, generation: Assignment) -> bool:
        """Return whether the group can run without this node.

        This is so if workers exited that could have stayed. The surviving workers of other nodes need not wait for new
        ones.
        """
        are_enough = generation.node_count > self._policy.min_nodes
        return self._outlives and are_enough and len(self._idle) < self.node.local_world_size

    def _over(self, ending: Finish) -> list[Action]:
        self.state = State.OVER
        return [Enter(GroupState.SUCCEEDED if ending.code == Exit.SUCCESS else GroupState.FAILED), ending]

    # ------------------------------------------------------------------ stopping

    def _stop_for_next(self, *, graceful: bool) -> list[Action]:
        if self.state is State.DONE or self.state is State.RUNNING:
            early = [Send(Failed(failure=self._finished_first))] if self._finished_first and not graceful else []
            return [*early, *self._stop(graceful=graceful)]
        # Workers that are only saving are not stuck: a shorter limit must not interrupt their checkpoint.
        if self.state is State.STOPPING and self._is_graceful and not graceful and self._active_workers:
            self._is_graceful = False
            hurry: list[Action] = [RegroupWorkers(frozenset(self._able & self._active_workers), graceful=False)]
            return [*(hurry if self._able & self._active_workers else []), self._set_kill_timer(self._hurry)]
        return []

    def _end_with(self, ending: Finish) -> list[Action]:
        """Handle that the store has ended the run for this agent."""
        if self.state is State.OVER:
            return []
        self._ending = ending if self._ending is None else self._ending
        if self.state is State.STOPPING:
            late = [*self._terminate_survivors(), SetTimer(Timer.KILL, self._limits.failure)]
            return late if self._ending is not TOLD_TO_STOP else []
        return self._stop(graceful=False) if self._alive else self._over(self._ending)

    def _terminate_survivors(self) -> list[Action]:
        """Send SIGTERM to surviving workers, which were only asked to leave their group."""
        return [SignalWorkers(signal.SIGTERM, frozenset(self._able))] if self._able else []

    def on_signal(self, which: signal.Signals) -> list[Action]:
        """Handle a signal that stops this agent. The second signal kills the workers."""
        if self.state is State.OVER:
            return []
        if self._ending is TOLD_TO_STOP:
            return [SignalWorkers(signal.SIGKILL)]
        self._ending = TOLD_TO_STOP
        if not self._alive and self.state is not State.STOPPING:
            return [Send(Leave()), *self._over(TOLD_TO_STOP)]
        if self.state is State.STOPPING:
            return [Send(Leave()), *self._terminate_survivors()]
        self.state = State.STOPPING
        patience = SetTimer(Timer.KILL, self._limits.shutdown)
        return [Send(Leave()), SignalWorkers(which), Enter(GroupState.STOPPING), patience]

    def on_timer(self, timer: Timer) -> list[Action]:
        """Handle a timer that has run out."""
        if timer is Timer.KILL:
            return self._kill()
        if self.state is not State.JOINING:
            return []
        if not self._link_up or self._trouble:
            why = waiting_messages.connect_timeout_message(self._endpoint, self._limits.join, self._trouble)
        elif self.unfit:
            why = f"This node was not let in within {self._limits.join:g} s. {self.unfit}."
        else:
            why = waiting_messages.join_timeout_message(
                self._endpoint, self._limits.join, self._waiting, self._policy.min_nodes
            )
        code = Exit.USAGE if self._trouble == waiting_messages.WRONG_SECRET else Exit.RENDEZVOUS_LOST
        self._ending = Finish(code, why)
        return self._stop(graceful=True) if self._alive else self._over(self._ending)

    def _kill(self) -> list[Action]:
        """Kill the workers that are still busy. If the run continues, workers that have left their group stay."""
        if self.state not in {State.PREPARING, State.STOPPING}:
            return []
        if self.state is State.STOPPING and self._ending is None:
            stuck = frozenset(self.stuck(self._active_workers))
            left = self._patience - self._limits.failure
            if not self._is_graceful:
                left = min(left, self._longest_survivor_step(besides=stuck))
            if left > 0:
                return [*([SignalWorkers(signal.SIGKILL, stuck)] if stuck else []), self._set_kill_timer(left)]
        has_staying = self._idle and self._ending is None
        return [SignalWorkers(signal.SIGKILL, frozenset(self._active_workers | self._parting) if has_staying else None)]
