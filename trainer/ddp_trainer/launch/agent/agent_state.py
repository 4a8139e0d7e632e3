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
        no worker active          (the cause of the stop decides)
        (After a GPU fault, and with --preflight after any failure of a worker of this node, the agent first
        checks the GPUs. It enters OVER if one is not fit.)

The link to the store may be down at any time, which has no effect on running workers. Messages are not queued:
:meth:`AgentStateMachine.initial_messages` sends again what the store must have received.

Its parts are :class:`JoinWait`, the wait for a generation; :class:`LocalWorkers`, the local ranks by their part in the
group; :class:`WorkerStop`, whom to ask to leave or to end, and when to kill whom; and :class:`Limits`, the time limits.

A worker is *active* from its start until it exits. A worker that is *able* to outlive its group is active only until
it has left the group. Then it is *idle* and joins the next generation, or it is *parting*: it was told to end and is
still saving. The agent stops workers that are not able, or do not leave in time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from ddp_trainer.common.constants import Exit, FailureReason, GroupState, OutsideReason
from ddp_trainer.launch.failures import CODES_OF_A_REQUESTED_STOP, finish_of, is_of_suspect_gpu, root_cause
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
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import Waiting
from ddp_trainer.launch.rendezvous import waiting_messages


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


class JoinWait:
    """Progress of an agent's wait for a group, from the messages of the store."""

    def __init__(self, endpoint: str, limit_seconds: float, min_nodes: int) -> None:
        self.is_link_up = False
        self.waiting: Waiting | None = None
        """Last reply of the store; None if it has not replied to this join."""
        self.trouble = ""
        """Why the last attempt to reach the store failed; empty if the store has sent a message since."""
        self.failed_stage = OutsideReason.CONNECTION
        """Stage of the last attempt that failed."""
        self._endpoint = endpoint
        self._limit_seconds = limit_seconds
        self._min_nodes = min_nodes

    def link_down(self) -> bool:
        """Record that the link to the store is lost. Return whether it was up."""
        was_up, self.is_link_up = self.is_link_up, False
        self.waiting = None if was_up else self.waiting
        return was_up

    def outside_reason(self, unfit: str) -> OutsideReason:
        """Return why this node is in no group. For ``unfit`` see :meth:`timed_out`."""
        if self.trouble:
            return self.failed_stage
        if self.waiting and self.waiting.namesake:
            return OutsideReason.NAME_TAKEN
        return OutsideReason.PREFLIGHT if unfit else OutsideReason.WAITING

    def timed_out(self, unfit: str) -> Finish:
        """Return how the agent ends when the limit is over.

        Args:
            unfit: Finding of the join preflight; empty if there is none.
        """
        if not self.is_link_up or self.trouble:
            why = waiting_messages.connect_timeout_message(self._endpoint, self._limit_seconds, self.trouble)
        elif unfit:
            why = f"This node was not let in within {self._limit_seconds:g} s. {unfit}."
        else:
            why = waiting_messages.join_timeout_message(
                self._endpoint, self._limit_seconds, self.waiting, self._min_nodes
            )
        return Finish(Exit.USAGE if self.trouble == waiting_messages.WRONG_SECRET else Exit.RENDEZVOUS_LOST, why)


class LocalWorkers:
    """Local ranks of one agent's workers, by state."""

    def __init__(self, count: int) -> None:
        self.count = count
        """Number of workers of the node."""
        self.alive: set[int] = set()
        self.able: set[int] = set()
        self.idle: set[int] = set()
        self.leaving: set[int] = set()
        self.publishing: set[int] = set()
        """Workers whose save other nodes need."""
        self.outlives = False
        """True if the workers can outlive their group, including those that have exited since."""

    def start(self) -> None:
        """Record that all workers of the node are started, or that the idle ones continue."""
        self.alive = set(range(self.count))

    def set_reusable(self, local_rank: int, *, able: bool) -> bool:
        """Record that a worker can outlive its group from now on, or no longer. Return True if it could until now."""
        self.outlives = able
        if able and local_rank in self.alive:
            self.able.add(local_rank)
        elif local_rank in self.able:
            self.able.discard(local_rank)
            return True
        return False

    def mark_left(self, local_rank: int, *, is_staying: bool, publishes: bool) -> None:
        """Record that a worker has left its group. The arguments are those of
        :meth:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine.left`.
        """
        (self.idle if is_staying else self.leaving).add(local_rank)
        if not is_staying:
            self.able.discard(local_rank)
        if publishes:
            self.publishing.add(local_rank)

    def remove(self, local_rank: int) -> None:
        """Record that a worker has exited."""
        for group in (self.alive, self.able, self.idle, self.leaving, self.publishing):
            group.discard(local_rank)

    @property
    def active(self) -> set[int]:
        """Workers that have not left their group."""
        return self.alive - self.idle - self.leaving

    @property
    def survivors(self) -> frozenset[int]:
        """Active workers that can outlive their group."""
        return frozenset(self.able & self.active)

    @property
    def are_all_reusable(self) -> bool:
        """True if every worker of the node can outlive its group."""
        return len(self.able) == self.count

    @property
    def are_all_idle(self) -> bool:
        """True if every worker of the node waits for the next group."""
        return len(self.idle) == self.count


STOP_REQUESTED: Final = Finish(Exit.TERMINATED)


class WorkerStop:
    """Stop of the workers, for the next generation or for good."""

    def __init__(self, workers: LocalWorkers, limits: Limits) -> None:
        self.ending: Finish | None = None
        """What to do when the workers are gone; None to join again."""
        self.is_graceful = True
        self.longest_step: Callable[[AbstractSet[int]], float] = lambda _: limits.failure
        """Return the seconds that these local ranks may be busy with work that cannot be interrupted, from the hang
        watchdog.
        """
        self.stuck: Callable[[AbstractSet[int]], AbstractSet[int]] = lambda _: frozenset()
        """Return those of these local ranks that cannot continue without help."""
        self._workers = workers
        self._limits = limits
        self._hurry = limits.failure
        """Seconds from a loss to SIGKILL. A surviving worker that computes notices the loss only after its step."""
        self._seconds_left = 0.0
        """Seconds to SIGKILL, from when the timer was last armed."""

    def begin(self, *, graceful: bool) -> None:
        """Begin a stop. How long surviving workers may take after a loss depends on the steps that they compute now."""
        self.is_graceful = graceful
        self._hurry = max(self._limits.failure, self._longest_survivor_step())

    def is_complete(self) -> bool:
        """Return whether all workers have left the group and saved; at the end of the run, whether all have exited."""
        return not (self._workers.active | self._workers.leaving if self.ending is None else self._workers.alive)

    def request(self) -> list[Action]:
        """Request all workers to stop. Workers that stay for the next group only leave the current one."""
        staying = self._workers.survivors if self.ending is None else frozenset()
        actions: list[Action] = [RegroupWorkers(staying, self.is_graceful)] if staying else []
        if not staying:
            actions.append(SignalWorkers(signal.SIGTERM))
        elif going := frozenset(self._workers.active - staying):
            actions.append(SignalWorkers(signal.SIGTERM, going))
        return [*actions, self._set_kill_timer(self._limits.shutdown if self.is_graceful else self._hurry)]

    def shorten_grace_period(self) -> list[Action]:
        """Shorten a graceful stop, because a peer is lost."""
        # Workers that are only saving are not stuck: a shorter limit must not interrupt their checkpoint.
        if not self.is_graceful or not self._workers.active:
            return []
        self.is_graceful = False
        survivors = self._workers.survivors
        hurry: list[Action] = [RegroupWorkers(survivors, graceful=False)] if survivors else []
        return [*hurry, self._set_kill_timer(self._hurry)]

    def terminate_survivors(self) -> list[Action]:
        """Send SIGTERM to surviving workers, which were only asked to leave their group."""
        return [SignalWorkers(signal.SIGTERM, frozenset(self._workers.able))] if self._workers.able else []

    def handle_timeout(self) -> list[Action]:
        """Kill stuck workers and give the others the rest of their time, or :meth:`kill` all when it is over."""
        if self.ending is not None:
            return self.kill()
        stuck = frozenset(self.stuck(self._workers.active))
        left = self._seconds_left - self._limits.failure
        if not self.is_graceful:
            left = min(left, self._longest_survivor_step(besides=stuck))
        if left <= 0:
            return self.kill()
        return [*([SignalWorkers(signal.SIGKILL, stuck)] if stuck else []), self._set_kill_timer(left)]

    def kill(self) -> list[Action]:
        """Kill the workers that have not left their group or still save. Idle workers stay if the run continues."""
        has_staying = self._workers.idle and self.ending is None
        late = frozenset(self._workers.active | self._workers.leaving)
        return [SignalWorkers(signal.SIGKILL, late if has_staying else None)]

    def _longest_survivor_step(self, *, besides: frozenset[int] = frozenset()) -> float:
        survivors = self._workers.survivors - besides
        return self.longest_step(survivors) if survivors else 0.0

    def _set_kill_timer(self, seconds: float) -> SetTimer:
        """Give workers this many seconds to stop, and check for stuck workers on the way."""
        self._seconds_left = seconds
        return SetTimer(Timer.KILL, min(seconds, self._limits.failure))


class State(Enum):
    """State of the agent."""

    PREPARING = auto()
    JOINING = auto()
    RUNNING = auto()
    STOPPING = auto()
    DONE = auto()
    OVER = auto()


class AgentStateMachine:
    """State machine of one agent. Every method takes an event and returns the resulting actions, in order."""

    def __init__(self, *, hello: messages.Hello, limits: Limits, endpoint: str) -> None:
        """Initialize the state machine.

        Args:
            hello: First message of this agent, before any event.
            limits: Time limits.
            endpoint: Endpoint of the store, for messages.
        """
        self.state = State.JOINING
        self.node = hello.node
        self.generation: Assignment | None = None
        self.failure: messages.Failure | None = None
        """First failure of this agent's workers in this generation."""
        self.is_before_first_step: Callable[[], bool] = lambda: False
        """Whether steps are counted, and no worker of this node has taken one."""
        self.is_importing: Callable[[], bool] = lambda: False
        """Returns true while the fork server imports modules that the first workers need."""
        self.unfit = ""
        """Finding of the join preflight that keeps this node out of the run; empty if there is none."""
        self._workers = LocalWorkers(hello.node.local_world_size)
        self.worker_stop = WorkerStop(self._workers, limits)
        self._finished_first: messages.Failure | None = None
        self.hello = hello
        self.limits = limits
        self.endpoint = endpoint
        self._port = 0
        self._prepares = self._checks_health = False
        self._is_probing = False
        """True while the GPUs of this node are checked; the node joins afterwards."""
        self._join_wait = JoinWait(endpoint, limits.join, hello.policy.min_nodes)

    # ------------------------------------------------------------------ the store

    def initial_messages(self, address: str) -> list[messages.FromAgent]:
        """Return the messages to send when the link is up: Hello, and everything that the store may have missed.

        Args:
            address: Local address of the connection.
        """
        self._join_wait.is_link_up = True
        if not self.node.address:
            self.node = replace(self.node, address=address)
        standing = {
            State.RUNNING: messages.WorkerState.RUNNING,
            State.STOPPING: messages.WorkerState.RUNNING,
            State.DONE: messages.WorkerState.SUCCEEDED,
        }
        hello = replace(
            self.hello,
            node=self.node,
            standing=standing.get(self.state, messages.WorkerState.IDLE),
            last=self.generation,
            outlive=self._workers.are_all_reusable,
        )
        outgoing: list[messages.FromAgent] = [hello]
        if self.state is State.JOINING and not self._is_probing:
            outgoing.append(self._join())
        if (self._is_probing or self.state in {State.STOPPING, State.PREPARING}) and self.failure:
            outgoing.append(messages.Failed(failure=self.failure))
        if (self.state is State.PREPARING or (self._is_probing and self._prepares)) and self.generation:
            outgoing.append(messages.StandBy(generation=self.generation.number))
        if self.worker_stop.ending is STOP_REQUESTED:
            outgoing.append(messages.Leave())
        return outgoing

    def link_down(self) -> list[Action]:
        """Handle a lost link: limit the time to reach the store again if this node is joining."""
        if not self._join_wait.link_down():
            return []  # the peer was not a store of this run and must not extend the time limit
        return [SetTimer(Timer.JOIN, self.limits.join)] if self.state is State.JOINING else []

    def link_failed(self, why: str, stage: OutsideReason) -> None:
        """Record why an attempt to reach the store failed, and in which stage."""
        self._join_wait.trouble, self._join_wait.failed_stage = why, stage

    @property
    def outside_reason(self) -> OutsideReason | None:
        """Why this node, which joins, is in no group; None if it does not join."""
        return self._join_wait.outside_reason(self.unfit) if self.state is State.JOINING else None

    def on_message(self, message: messages.FromStore) -> list[Action]:
        """Handle a message of the store."""
        self._join_wait.trouble = ""
        match message:
            case messages.Start():
                return self._start(message.assignment)
            case messages.Stop():
                return self._stop_for_next(graceful=message.graceful)
            case messages.Over():
                return self._end_with(finish_of(message))
            case messages.Rejected():
                return self._end_with(Finish(message.exit_code, message.why))
            case messages.Waiting() | messages.Prepare():
                return self._wait(message)
            case (
                messages.OtherPolicy()
                | messages.Show()
                | messages.HangingRanks()
                | messages.RunPreflight()
                | messages.WorkerImports()
                | messages.Ping()
                | messages.Part()
            ):
                return []

    def _wait(self, message: messages.Waiting | messages.Prepare) -> list[Action]:
        """Handle that the store has no place for this node yet."""
        if self._is_probing:
            return []
        if isinstance(message, messages.Prepare):
            # The store waits for another Join, also if some or all workers of this node got ready meanwhile.
            is_ready = self._join().is_prepared
            return [] if self.state is not State.JOINING else [Send(self._join())] if is_ready else self.prepare()
        self._join_wait.waiting = message
        if self.state is not State.JOINING:
            return []
        if message.spare:
            return [CancelTimer(Timer.JOIN), Enter(GroupState.SPARE), StartForkServer()]
        return [Enter(GroupState.RENDEZVOUS)]

    # ------------------------------------------------------------------ joining

    def prepare(self) -> list[Action]:
        """Start workers that get ready for a generation before this node joins, so that the group does not wait for
        them.
        """
        self.state = State.PREPARING
        self._workers.start()
        return [Enter(GroupState.STARTING), PrepareWorkers(), SetTimer(Timer.KILL, self.limits.prepare)]

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

    def on_probe_result(self, trouble: str) -> list[Action]:
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
        return [Send(messages.Leave()), *self._end_with(Finish(Exit.GPU_FAULT, "" if failure else trouble, failure))]

    def join(self, port: int) -> list[Action]:
        """Join the rendezvous, when no worker is active.

        Args:
            port: Port reserved for the next generation.
        """
        self.state = State.JOINING
        self._port = port
        self._join_wait.waiting = None
        return [Enter(GroupState.RENDEZVOUS), SetTimer(Timer.JOIN, self.limits.join), Send(self._join())]

    def _join(self) -> messages.Join:
        return messages.Join(
            port=self._port,
            is_prepared=self._workers.are_all_idle,
            is_before_first_step=self.is_before_first_step(),
            is_importing=self.is_importing(),
        )

    def on_imports_changed(self) -> list[Action]:
        """Handle that the fork server imports more, or has imported everything: the store may wait for this."""
        return [Send(self._join())] if self.state is State.JOINING and not self._is_probing else []

    def _start(self, generation: Assignment) -> list[Action]:
        if self.state is not State.JOINING or self._is_probing:
            return []
        self.state = State.RUNNING
        self.generation = generation
        self.failure = self._finished_first = None
        self.worker_stop.is_graceful = True
        self._workers.start()
        self._workers.idle.clear()
        return [
            CancelTimer(Timer.JOIN),
            Enter(GroupState.STARTING),
            StartWorkers(generation),
            Enter(GroupState.RUNNING),
        ]

    # ------------------------------------------------------------------ workers

    def set_reusable(self, local_rank: int, *, able: bool = True) -> list[Action]:
        """Handle a worker that can outlive its group from now on, or can no longer."""
        could = self._workers.are_all_reusable
        actions: list[Action] = []
        if self._workers.set_reusable(local_rank, able=able) and self.state is State.STOPPING:
            actions.append(SignalWorkers(signal.SIGTERM, frozenset({local_rank})))
        return (
            actions
            if could is self._workers.are_all_reusable
            else [*actions, Send(messages.ReusableWorkers(able=able))]
        )

    def left(
        self, local_rank: int, failure: messages.Failure | None, *, is_staying: bool = True, publishes: bool = False
    ) -> list[Action]:
        """Handle a worker that has left its group.

        Args:
            local_rank: Local rank of the worker.
            failure: What the process would have ended with; None if it was in no group yet.
            is_staying: The worker waits for the next group; False if it ends and is still saving.
            publishes: Other nodes need what the worker saves.
        """
        if local_rank not in self._workers.able:
            return []
        self._workers.mark_left(local_rank, is_staying=is_staying, publishes=publishes)
        if self.worker_stop.ending is STOP_REQUESTED and self.state is State.STOPPING:
            return [] if self._workers.active | self._workers.publishing else [Send(messages.Leave(has_left=True))]
        return self._on_worker_idle(failure, agreed=failure is not None and failure.exit_code == Exit.TERMINATED)

    def on_worker_exit(self, local_rank: int, failure: messages.Failure | None) -> list[Action]:
        """Handle a worker that has exited.

        Args:
            local_rank: Local rank of the worker.
            failure: How it failed. A failure with exit code 0 counts only if others fail without this worker.
        """
        if failure and failure.exit_code == Exit.SUCCESS:
            self._finished_first, failure = self._finished_first or failure, None
        could = self._workers.are_all_reusable
        self._workers.remove(local_rank)
        # The worker that replaces it reports by itself whether it can outlive a group.
        lost: list[Action] = [Send(messages.ReusableWorkers(able=False))] if could else []
        return [*lost, *self._on_worker_idle(failure)]

    def _on_worker_idle(self, failure: messages.Failure | None, *, agreed: bool = False) -> list[Action]:
        """Handle a worker that left or exited; ``agreed`` if all ranks ended their group together and none is stuck."""
        if self.state in {State.PREPARING, State.JOINING}:
            # One that exited while the others get ready starts again with its generation.
            is_prepared = self.state is State.PREPARING and not self._workers.active
            return [CancelTimer(Timer.KILL), Rejoin()] if is_prepared else []
        actions: list[Action] = []
        was_requested = self.state is State.STOPPING and failure and failure.exit_code in CODES_OF_A_REQUESTED_STOP
        if failure and not was_requested:
            first = failure if self.failure is None else root_cause(self.failure, failure)
            first = root_cause(first, self._finished_first) if self._finished_first else first
            if first is not self.failure and self.worker_stop.ending is None:
                actions.append(Send(messages.Failed(failure=first, agreed=agreed)))
            self.failure = first
        if self.state is State.RUNNING and failure:
            actions += self._stop(graceful=agreed)
        elif self.state is State.RUNNING and not self._workers.alive and self.generation:
            self.state = State.DONE
            actions += [Enter(GroupState.SUCCEEDED), Send(messages.Succeeded(generation=self.generation.number))]
        elif self.state is State.STOPPING and self.worker_stop.is_complete():
            actions += self._stopped()
        return actions

    def _stop(self, *, graceful: bool) -> list[Action]:
        self.state = State.STOPPING
        self.worker_stop.begin(graceful=graceful)
        actions: list[Action] = [CancelTimer(Timer.JOIN), Enter(GroupState.STOPPING)]
        return actions + (self._stopped() if self.worker_stop.is_complete() else self.worker_stop.request())

    def _stopped(self) -> list[Action]:
        """Continue with the purpose of the stop, when no worker is active or none is left."""
        if self.worker_stop.ending is not None:
            return [CancelTimer(Timer.KILL), *self._over(self.worker_stop.ending)]
        generation, least = self.generation, self.hello.policy.min_nodes
        # The surviving workers of other nodes need not wait for new ones of this node.
        has_lost_survivors = self._workers.outlives and not self._workers.are_all_idle
        self._prepares = has_lost_survivors and generation is not None and generation.node_count > least
        aside = [Send(messages.StandBy(generation=generation.number))] if self._prepares and generation else []
        is_suspect = self.failure is not None and is_of_suspect_gpu(self.failure, after_any=self._checks_health)
        return [CancelTimer(Timer.KILL), *aside, *(self._probe() if is_suspect else self._begin())]

    def _over(self, ending: Finish) -> list[Action]:
        self.state = State.OVER
        return [Enter(GroupState.SUCCEEDED if ending.code == Exit.SUCCESS else GroupState.FAILED), ending]

    # ------------------------------------------------------------------ stopping

    def _stop_for_next(self, *, graceful: bool) -> list[Action]:
        if self.state is State.DONE or self.state is State.RUNNING:
            early = (
                [Send(messages.Failed(failure=self._finished_first))] if self._finished_first and not graceful else []
            )
            return [*early, *self._stop(graceful=graceful)]
        return self.worker_stop.shorten_grace_period() if self.state is State.STOPPING and not graceful else []

    def _end_with(self, ending: Finish) -> list[Action]:
        """Handle that the store has ended the run for this agent."""
        if self.state is State.OVER:
            return []
        self.worker_stop.ending = ending if self.worker_stop.ending is None else self.worker_stop.ending
        if self.state is State.STOPPING:
            late = [*self.worker_stop.terminate_survivors(), SetTimer(Timer.KILL, self.limits.failure)]
            return late if self.worker_stop.ending is not STOP_REQUESTED else []
        return self._stop(graceful=False) if self._workers.alive else self._over(self.worker_stop.ending)

    def on_signal(self, which: signal.Signals) -> list[Action]:
        """Handle a signal that stops this agent. The second signal kills the workers."""
        if self.state is State.OVER:
            return []
        if self.worker_stop.ending is STOP_REQUESTED:
            return [SignalWorkers(signal.SIGKILL)]
        self.worker_stop.ending = STOP_REQUESTED
        if not self._workers.alive and self.state is not State.STOPPING:
            return [Send(messages.Leave()), *self._over(STOP_REQUESTED)]
        if self.state is State.STOPPING:
            return [Send(messages.Leave()), *self.worker_stop.terminate_survivors()]
        self.state = State.STOPPING
        kill_timer = SetTimer(Timer.KILL, self.limits.shutdown)
        return [Send(messages.Leave()), SignalWorkers(which), Enter(GroupState.STOPPING), kill_timer]

    def on_timer(self, timer: Timer) -> list[Action]:
        """Handle a timer that has run out."""
        if timer is Timer.KILL:
            return self._on_kill_timer()
        if self.state is not State.JOINING:
            return []
        self.worker_stop.ending = self._join_wait.timed_out(self.unfit)
        return self._stop(graceful=True) if self._workers.alive else self._over(self.worker_stop.ending)

    def _on_kill_timer(self) -> list[Action]:
        if self.state is State.STOPPING:
            return self.worker_stop.handle_timeout()
        return self.worker_stop.kill() if self.state is State.PREPARING else []
