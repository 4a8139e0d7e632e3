"""What an agent does when something happens: pure decisions, no process, no socket, no clock.

::

    PREPARING (only where the program can) ◀── STOPPING, where workers that could have stayed
       │ workers ready, or gone               have ended, and the group can do without this node
       ▼     Start                     all workers exited 0
    JOINING ───────▶ RUNNING ─────────────────────────────────▶ DONE
       ▲                │ a worker failed, Stop, Over, a signal    │ Stop: JOINING
       │                ▼                                          │ Over: OVER
       └──────────── STOPPING ──▶ OVER ◀───────────────────────────┘
        no worker busy            (what the stop was for decides)
        (after a fault of a GPU, and with --preflight after any failure of a worker of this node: once the GPUs are
        checked; OVER where one is not fit)

A worker is *busy* from its start until it exits. One that is *able* to outlive its group is so only until it has left
it: then it is idle, and goes on in the next generation, or *parting*, if it was itself told to end and only saves yet.
Whoever is not able, or does not leave in time, is stopped.

The link to the store may be down at any time. While workers run that changes nothing; whatever the store must
know is said again when the link is up (:meth:`AgentStateMachine.opening`), so nothing is queued and nothing is said
twice in vain.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from ddp_trainer.common.constants import Exit, FailureReason, GroupState
from ddp_trainer.launch.failures.failure_reason import earlier, is_of_a_gpu, is_own
from ddp_trainer.launch.failures.stop_codes import AS_ASKED, finish_of
from ddp_trainer.launch.protocol.actions import (
    Action,
    Arm,
    Disarm,
    Enter,
    Finish,
    PrepareWorkers,
    ProbeGpus,
    RegroupWorkers,
    Rejoin,
    Send,
    SignalWorkers,
    StartWorkers,
    Timer,
)
from ddp_trainer.launch.protocol.messages import (
    Aside,
    Assignment,
    Failed,
    Failure,
    FromAgent,
    FromStore,
    Hello,
    Hung,
    Join,
    Leave,
    Meet,
    Outlive,
    Over,
    Part,
    Ping,
    Prepare,
    Refused,
    Show,
    Standing,
    Start,
    Stop,
    Succeeded,
    Waiting,
)
from ddp_trainer.launch.rendezvous import waiting_messages


class State(Enum):
    """What the agent is about."""

    PREPARING = auto()
    JOINING = auto()
    RUNNING = auto()
    STOPPING = auto()
    DONE = auto()
    OVER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long the agent waits; seconds."""

    join: float = 600.0
    """For a generation, the store being reachable or not."""
    shutdown: float = 30.0
    """Between SIGTERM and SIGKILL when everybody is alive: the workers finish their step and save."""
    failure: float = 3.0
    """The same when a peer is dead: what still runs is stuck in a collective, or about to fail. Workers that could stay
    have longer, if they may be busy with a step that takes longer."""
    prepare: float = 60.0
    """For workers that get ready before they have a generation; after that they are started when they have one."""


TOLD_TO_STOP: Final = Finish(Exit.TERMINATED)


class AgentStateMachine:
    """One agent. Every method takes what happened and returns what to do, in order."""

    def __init__(self, *, hello: Hello, limits: Limits, endpoint: str) -> None:
        """``hello`` is what this agent says first, as long as nothing has happened."""
        self.state = State.JOINING
        self.node = hello.node
        self.generation: Assignment | None = None
        self.failure: Failure | None = None
        """The first of this agent's workers in this generation."""
        self.unfit = ""
        """What the preflight of this node's joining has found, where it may not join for that."""
        self.longest_step: Callable[[AbstractSet[int]], float] = lambda _: limits.failure
        """Seconds that these local ranks may be busy with what nobody can interrupt, as far as their watch knows."""
        self.stuck: Callable[[AbstractSet[int]], AbstractSet[int]] = lambda _: frozenset()
        """Those of these local ranks that will not go on by themselves."""
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
        """What follows when the workers are gone; to join again when None."""
        self._outlives = False
        """Its workers could outlive their group, those that have ended since too."""
        self._prepares = self._checks_health = False
        self._is_probing = False
        """The GPUs of this node are being checked; it joins afterwards."""
        self._is_graceful = True
        self._hurry = limits.failure
        """Seconds from a loss until what still runs is killed: a survivor that computes notices after its step."""
        self._patience = 0.0
        """Seconds until what still runs is killed, from when the timer was last armed."""
        self._link_up = False
        self._waiting: Waiting | None = None
        self._trouble = ""

    # ------------------------------------------------------------------ the store

    def opening(self, address: str) -> list[FromAgent]:
        """The link is up, from this local address: who we are, and whatever the store may have missed."""
        self._link_up = True
        if not self.node.address:
            self.node = replace(self.node, address=address)
        standing = {State.RUNNING: Standing.RUNNING, State.STOPPING: Standing.RUNNING, State.DONE: Standing.SUCCEEDED}
        hello = replace(
            self._hello,
            node=self.node,
            standing=standing.get(self.state, Standing.IDLE),
            last=self.generation,
            outlive=self._all_able(),
        )
        messages: list[FromAgent] = [hello]
        if self.state is State.JOINING and not self._is_probing:
            messages.append(self._join())
        if (self._is_probing or self.state in {State.STOPPING, State.PREPARING}) and self.failure:
            messages.append(Failed(failure=self.failure))
        if (self.state is State.PREPARING or (self._is_probing and self._prepares)) and self.generation:
            messages.append(Aside(generation=self.generation.number))
        if self._ending is TOLD_TO_STOP:
            messages.append(Leave())
        return messages

    def link_down(self) -> list[Action]:
        """The store went away; it will be looked for."""
        if not self._link_up:
            return []  # what was there was no store of this run, and gives this agent no more time
        self._link_up = False
        self._waiting = None
        return [Arm(Timer.JOIN, self._limits.join)] if self.state is State.JOINING else []

    def link_trouble(self, why: str) -> None:
        """A try to reach the store failed."""
        self._trouble = why

    def told(self, message: FromStore) -> list[Action]:
        """The store said something."""
        self._trouble = ""
        match message:
            case Start():
                return self._start(message.assignment)
            case Stop():
                return self._stop_for_next(graceful=message.graceful)
            case Over():
                return self._end_with(finish_of(message))
            case Refused():
                return self._end_with(Finish(message.exit_code, message.why))
            case Waiting() | Prepare():
                return self._wait(message)
            case Show() | Hung() | Meet() | Ping() | Part():
                return []

    def _wait(self, message: Waiting | Prepare) -> list[Action]:
        """There is no place for this node yet."""
        if self._is_probing:
            return []
        if isinstance(message, Prepare):
            # The store waits for another Join: also of a node whose workers, some or all, have got ready meanwhile.
            is_ready = self._join().is_prepared
            return [] if self.state is not State.JOINING else [Send(self._join())] if is_ready else self.prepare()
        self._waiting = message
        return [Disarm(Timer.JOIN)] if message.spare else []

    # ------------------------------------------------------------------ joining

    def prepare(self) -> list[Action]:
        """Where the program can wait for its generation: let it get ready before this node is waited for."""
        self.state = State.PREPARING
        self._alive = set(range(self.node.local_world_size))
        return [Enter(GroupState.STARTING), PrepareWorkers(), Arm(Timer.KILL, self._limits.prepare)]

    def begin(self, *, prepares: bool, is_suspect: bool, checks_health: bool = False) -> list[Action]:
        """The agent starts; on a node whose GPUs are suspect by a look at them.

        Args:
            prepares: Workers can get ready before there is a generation.
            is_suspect: A worker has failed here before, in a container that is gone.
            checks_health: GPUs are suspect after any failure of a worker of this node, not only after a fault of a GPU.
        """
        self._prepares, self._checks_health = prepares, checks_health
        return self._probe() if is_suspect else self._begin()

    def _begin(self) -> list[Action]:
        return self.prepare() if self._prepares else [Rejoin()]

    def _probe(self) -> list[Action]:
        """Neither an order of the store nor a signal finds anything to stop meanwhile, as while it joins."""
        self.state, self._is_probing = State.JOINING, True
        return [ProbeGpus()]

    def probed(self, trouble: str) -> list[Action]:
        """The GPUs have been checked: join, or leave the run for ``trouble``, a sentence about one of them."""
        if not self._is_probing or self.state is State.OVER:
            return []
        self._is_probing = False
        if not trouble:
            return self._begin()
        failure = self.failure and replace(self.failure, reason=FailureReason.GPU_FAULT, message=trouble)
        return [Send(Leave()), *self._end_with(Finish(Exit.GPU_FAULT, "" if failure else trouble, failure))]

    def join(self, port: int) -> list[Action]:
        """No worker is busy, and ``port`` is held for the next generation."""
        self.state = State.JOINING
        self._port = port
        self._waiting = None
        return [Enter(GroupState.RENDEZVOUS), Arm(Timer.JOIN, self._limits.join), Send(self._join())]

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
        return [Disarm(Timer.JOIN), Enter(GroupState.STARTING), StartWorkers(generation), Enter(GroupState.RUNNING)]

    # ------------------------------------------------------------------ workers

    @property
    def _busy(self) -> set[int]:
        return self._alive - self._idle - self._parting

    def able(self, local_rank: int, *, able: bool = True) -> list[Action]:
        """A worker can outlive its group from now on, or can no longer."""
        self._outlives = able
        could = self._all_able()
        actions: list[Action] = []
        if able and local_rank in self._alive:
            self._able.add(local_rank)
        elif local_rank in self._able:
            self._able.discard(local_rank)
            if self.state is State.STOPPING:
                actions.append(SignalWorkers(signal.SIGTERM, frozenset({local_rank})))
        return actions if could is self._all_able() else [*actions, Send(Outlive(able=able))]

    def _all_able(self) -> bool:
        return len(self._able) == self.node.local_world_size

    def left(
        self, local_rank: int, failure: Failure | None, *, stays: bool = True, publishes: bool = False
    ) -> list[Action]:
        """A worker has left its group and ``stays``, or has yet to save, and perhaps ``publishes`` what others need;
        ``failure`` is what it would have ended with, None of a first one.
        """
        if local_rank not in self._able:
            return []
        (self._idle if stays else self._parting).add(local_rank)
        if not stays:
            self._able.discard(local_rank)
        if publishes:
            self._publishing.add(local_rank)
        if self._ending is TOLD_TO_STOP and self.state is State.STOPPING:
            return [] if self._busy | self._publishing else [Send(Leave(has_left=True))]
        return self._no_longer_busy(failure, agreed=failure is not None and failure.exit_code == Exit.TERMINATED)

    def exited(self, local_rank: int, failure: Failure | None) -> list[Action]:
        """A worker is gone. A failure with exit code 0 counts only if others fail without this worker."""
        if failure and failure.exit_code == Exit.SUCCESS:
            self._finished_first, failure = self._finished_first or failure, None
        could = self._all_able()
        for group in (self._alive, self._able, self._idle, self._parting, self._publishing):
            group.discard(local_rank)
        # Whoever comes in its place says for itself what it can.
        lost: list[Action] = [Send(Outlive(able=False))] if could else []
        return [*lost, *self._no_longer_busy(failure)]

    def _no_longer_busy(self, failure: Failure | None, *, agreed: bool = False) -> list[Action]:
        """``agreed``: all ranks ended their group together, and none of them is stuck."""
        if self.state in {State.PREPARING, State.JOINING}:
            return self._no_longer_preparing()
        actions: list[Action] = []
        if failure and not (self.state is State.STOPPING and failure.exit_code in AS_ASKED):
            first = earlier(self.failure, failure)
            first = earlier(first, self._finished_first) if self._finished_first else first
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

    def _no_longer_preparing(self) -> list[Action]:
        """A worker that ended while it got ready will be started in its generation, and fail there if it must."""
        if self.state is State.PREPARING and not self._busy:
            return [Disarm(Timer.KILL), Rejoin()]
        return []

    def _stop(self, *, graceful: bool) -> list[Action]:
        self.state = State.STOPPING
        self._is_graceful = graceful
        self._hurry = max(self._limits.failure, self._time_of_survivors())
        actions: list[Action] = [Disarm(Timer.JOIN), Enter(GroupState.STOPPING)]
        if self._has_stopped():
            return actions + self._stopped()
        return [*actions, *self._ask(graceful=graceful), self._give(self._limits.shutdown if graceful else self._hurry)]

    def _time_of_survivors(self, *, besides: frozenset[int] = frozenset()) -> float:
        survivors = frozenset(self._able & self._busy) - besides
        return self.longest_step(survivors) if survivors else 0.0

    def _give(self, patience: float) -> Arm:
        """Give workers so many seconds to stop, and look on the way for those that never will."""
        self._patience = patience
        return Arm(Timer.KILL, min(patience, self._limits.failure))

    def _ask(self, *, graceful: bool) -> list[Action]:
        """Have workers stop: those that stay for the next group only leave this one."""
        staying = frozenset(self._able & self._busy) if self._ending is None else frozenset()
        actions: list[Action] = [RegroupWorkers(staying, graceful)] if staying else []
        if not staying:
            actions.append(SignalWorkers(signal.SIGTERM))
        elif going := frozenset(self._busy - staying):
            actions.append(SignalWorkers(signal.SIGTERM, going))
        return actions

    def _has_stopped(self) -> bool:
        return not (self._busy | self._parting if self._ending is None else self._alive)

    def _stopped(self) -> list[Action]:
        """No worker is busy, or none is left: on to what the stop was for."""
        if self._ending is not None:
            return [Disarm(Timer.KILL), *self._over(self._ending)]
        self._prepares = self.generation is not None and self._can_be_spared(self.generation)
        aside = [Send(Aside(generation=self.generation.number))] if self._prepares and self.generation else []
        return [Disarm(Timer.KILL), *aside, *(self._probe() if self._is_suspect() else self._begin())]

    def _is_suspect(self) -> bool:
        failure = self.failure
        if failure is None or failure.exit_code == Exit.NOT_FIT:
            return False  # a preflight has looked already
        return is_of_a_gpu(failure) or (self._checks_health and is_own(failure.reason))

    def _can_be_spared(self, generation: Assignment) -> bool:
        """Workers have ended that could have stayed: those of other nodes, which stay, need not wait for new ones."""
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
        # Those that only save yet are stuck in nothing: what hurries the others must not tear their checkpoint.
        if self.state is State.STOPPING and self._is_graceful and not graceful and self._busy:
            self._is_graceful = False
            hurry: list[Action] = [RegroupWorkers(frozenset(self._able & self._busy), graceful=False)]
            return [*(hurry if self._able & self._busy else []), self._give(self._hurry)]
        return []

    def _end_with(self, ending: Finish) -> list[Action]:
        """The store has closed the run to us."""
        if self.state is State.OVER:
            return []
        self._ending = ending if self._ending is None else self._ending
        if self.state is State.STOPPING:
            late = [*self._end_those_that_stayed(), Arm(Timer.KILL, self._limits.failure)]
            return late if self._ending is not TOLD_TO_STOP else []
        return self._stop(graceful=False) if self._alive else self._over(self._ending)

    def _end_those_that_stayed(self) -> list[Action]:
        """They were not asked to end before."""
        return [SignalWorkers(signal.SIGTERM, frozenset(self._able))] if self._able else []

    def signalled(self, which: signal.Signals) -> list[Action]:
        """Somebody told this agent to stop; the second time, at once."""
        if self.state is State.OVER:
            return []
        if self._ending is TOLD_TO_STOP:
            return [SignalWorkers(signal.SIGKILL)]
        self._ending = TOLD_TO_STOP
        if not self._alive and self.state is not State.STOPPING:
            return [Send(Leave()), *self._over(TOLD_TO_STOP)]
        if self.state is State.STOPPING:
            return [Send(Leave()), *self._end_those_that_stayed()]
        self.state = State.STOPPING
        patience = Arm(Timer.KILL, self._limits.shutdown)
        return [Send(Leave()), SignalWorkers(which), Enter(GroupState.STOPPING), patience]

    def fired(self, timer: Timer) -> list[Action]:
        """A timer ran out."""
        if timer is Timer.KILL:
            return self._kill()
        if self.state is not State.JOINING:
            return []
        if not self._link_up or self._trouble:
            why = waiting_messages.unreachable(self._endpoint, self._limits.join, self._trouble)
        elif self.unfit:
            why = f"This node was not let in within {self._limits.join:g} s. {self.unfit}."
        else:
            why = waiting_messages.too_few(self._endpoint, self._limits.join, self._waiting, self._policy.min_nodes)
        code = Exit.USAGE if self._trouble == waiting_messages.WRONG_SECRET else Exit.RENDEZVOUS_LOST
        self._ending = Finish(code, why)
        return self._stop(graceful=True) if self._alive else self._over(self._ending)

    def _kill(self) -> list[Action]:
        """What is still busy has had its time; where the run goes on, those that have left their group stay."""
        if self.state not in {State.PREPARING, State.STOPPING}:
            return []
        if self.state is State.STOPPING and self._ending is None:
            stuck = frozenset(self.stuck(self._busy))
            left = self._patience - self._limits.failure
            if not self._is_graceful:
                left = min(left, self._time_of_survivors(besides=stuck))
            if left > 0:
                return [*([SignalWorkers(signal.SIGKILL, stuck)] if stuck else []), self._give(left)]
        has_staying = self._idle and self._ending is None
        return [SignalWorkers(signal.SIGKILL, frozenset(self._busy | self._parting) if has_staying else None)]
