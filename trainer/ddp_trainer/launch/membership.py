"""Who is in the run: the state machine of the store, without a socket and without a clock of its own.

::

                     enough nodes joined
          FORMING ─────────────────────────▶ RUNNING ── every member succeeded ──▶ OVER
             ▲                                  │                                   ▲
             │ the cause is free,               │ a failure, a loss,                │
             │ or the budget allows             ▼ a newcomer, a leave               │
             └──────────────────────────────STOPPING ── the budget is spent ────────┘
                                    (until every member has stopped, or is gone)

There is one such machine per run, it alone makes generations, and it makes one only when no member of the last is
known to run: so there are never two worlds. A generation's number only grows, also over a store that forgot
everything, because agents tell it the last they saw; its fence grows even when nobody is left to tell. Deadlines are
the caller's to watch (:meth:`Membership.deadline`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, auto

from ddp_trainer.contract import Exit
from ddp_trainer.launch import exitcodes
from ddp_trainer.launch.admission import intruders, objection, should_prepare
from ddp_trainer.launch.budget import Budget
from ddp_trainer.launch.candidates import Candidates
from ddp_trainer.launch.evidence import earlier
from ddp_trainer.launch.hang_judge import HangJudge
from ddp_trainer.launch.inspection import Inspection
from ddp_trainer.launch.protocol import (
    Alarm,
    Aside,
    Failed,
    Failure,
    FromAgent,
    FromStore,
    Generation,
    Hello,
    Join,
    Leave,
    Looks,
    Met,
    Outlive,
    Over,
    Part,
    Ping,
    Policy,
    Prepare,
    Refused,
    Standing,
    Start,
    Stop,
    Succeeded,
    Verdict,
    Waiting,
)
from ddp_trainer.launch.ranks import choose
from ddp_trainer.launch.rollcall import RollCall
from ddp_trainer.launch.roster import Agent, Fitness, Roster
from ddp_trainer.launch.timing import PATIENCE, Patience


class Phase(Enum):
    """Where the run stands."""

    FORMING = auto()
    RUNNING = auto()
    STOPPING = auto()
    OVER = auto()


class Membership:
    """One run. ``send(peer, message)`` must not call back into this object."""

    def __init__(
        self,
        send: Callable[[int, FromStore], None],
        clock: Callable[[], float],
        *,
        run_id: str = "",
        patience: Patience = PATIENCE,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = run_id
        """Empty until the first agent names it."""
        self.phase = Phase.FORMING
        self.roster = Roster()
        self.over: Over | None = None
        self.has_parted = False
        """The run is over, and nobody who is connected has anything left to do."""
        self._said_goodbye: set[str] = set()
        self._send = send
        self._clock = clock
        self._wall_clock = wall_clock
        self._patience = patience
        self._policy: Policy | None = None
        self._highest_number = 0
        self._budget = Budget()
        self._roll_call = RollCall()
        self._may_form_at = clock() + patience.first
        self._candidates = Candidates()
        self._inspection = Inspection()
        self._forget_the_group()

    def _forget_the_group(self) -> None:
        """What is known about one group, before it begins."""
        self._succeeded: set[str] = set()
        self._first: Failure | None = None
        self._membership_changed = False
        self._graceful = True
        self._candidates.first_at = math.inf
        self._judge = HangJudge()

    # ------------------------------------------------------------------ what happens

    def receive(self, peer: int, message: FromAgent) -> None:
        """An agent said something. A peer that has not said Hello is a stranger, and not heard."""
        agent = self.roster.of_peer(peer)
        if isinstance(message, Hello):
            self._hello(peer, message)
        elif isinstance(message, Ping):
            self._send(peer, Ping())
        elif agent:
            self._hear(agent, message)
        self.tick()
        is_new = (
            isinstance(message, Join | Met) and agent and agent.is_ready and not self.roster.is_member(agent.node.token)
        )
        if agent and is_new and not self._is_short():
            self._tell(agent, Waiting(nodes=len(self.roster.ready()), spare=self._room() <= 0))

    def _hear(self, agent: Agent, message: FromAgent) -> None:
        match message:
            case Join():
                self._joined(agent, message)
            case Failed():
                self._failed(message.failure, agreed=message.agreed)
            case Succeeded() if message.generation == self.roster.number and self.roster.is_member(agent.node.token):
                self._succeeded.add(agent.node.token)
            case Leave():
                self._leaves(agent, message)
            case Aside() if message.generation == self.roster.number:
                self._steps_aside(agent)
            case Outlive():
                agent.outlive = message.able
            case Met() if self._inspection.met(agent, message, self.roster, self._clock()):
                self._comes(agent)
            case Alarm() | Looks() if self._is_busy(agent) and message.generation == self.roster.number:
                self._hear_of_hang(agent, message)
            case _:
                pass

    def lost(self, peer: int) -> None:
        """The connection of a peer ended, or it has been silent too long."""
        if agent := self.roster.of_peer(peer):
            patience = 0 if agent.leaving else self._patience.reconnect
            agent.peer, agent.port, agent.lost_at = None, None, self._clock() + patience
        self.tick()

    def tick(self) -> None:
        """Time has passed: do what is due."""
        steps = {
            Phase.FORMING: self._form_if_due,
            Phase.RUNNING: self._complete_or_grow,
            Phase.STOPPING: self._settle_if_stopped,
            Phase.OVER: self._part_if_all_may,
        }
        for agent, meet in list(self._inspection.begin(self.roster, self._clock())):
            self._tell(agent, meet) if meet else self._comes(agent)
        phase = None
        while phase is not self.phase:
            phase = self.phase
            self._forget_the_lost()
            steps.get(self.phase, lambda: None)()
        self._announce()

    def deadline(self) -> float | None:
        """When :meth:`tick` is due next, if nothing happens before."""
        due = [self._inspection.deadline(), *(agent.lost_at for agent in self.roster.agents.values())]
        questions = {Phase.FORMING: self._form_at, Phase.RUNNING: self._grow_at}
        soonest = min(*due, questions.get(self.phase, lambda: math.inf)())
        return None if math.isinf(soonest) else soonest

    # ------------------------------------------------------------------ arrivals

    def _hello(self, peer: int, hello: Hello) -> None:
        if why := objection(hello, self.run_id, self.roster):
            self._send(peer, Refused(why=why, exit_code=Exit.RENDEZVOUS_LOST))
            return
        if self.over:
            code = self.over.exit_code if self.over.verdict is Verdict.SUCCEEDED else Exit.DO_NOT_RESTART
            self._send(peer, replace(self.over, late=True, exit_code=code))
            self._send(peer, Part())
            return
        self.run_id = hello.run_id
        self._policy = self._policy or hello.policy
        self._supersede(hello)
        agent = Agent.of(hello, peer, self.roster.agents.get(hello.node.token))
        self.roster.agents[hello.node.token] = agent
        if hello.last:
            self._highest_number = max(self._highest_number, hello.last.number)
            if hello.last.fence > self.roster.fence:
                self._learn(hello.last, hello.standing)
                for intruder, why in intruders(hello, self.roster):
                    del self.roster.agents[intruder.node.token]
                    self._tell(intruder, Refused(why=why, exit_code=Exit.RENDEZVOUS_LOST))
        if hello.standing is not Standing.IDLE:
            self._resume(agent, hello)

    def _supersede(self, hello: Hello) -> None:
        """A pod that was made anew replaces the one whose name it bears, though that may not know it is gone."""
        for agent in self.roster.namesakes(hello.node):
            why = f"Another pod named {hello.node.name} has taken the place of this one."
            self._tell(agent, Refused(why=why, exit_code=Exit.STALE_GENERATION))
            agent.peer, agent.port, agent.lost_at = None, None, -math.inf
        self._forget_the_lost()

    def _learn(self, last: Generation, standing: Standing) -> None:
        """A generation we do not know: this store is younger than the run, so what the agent knows is adopted."""
        tokens = {node.token for node in last.nodes}
        for agent in self.roster.members():
            if agent.port is None and agent.node.token not in tokens:
                self._tell(agent, Stop(graceful=False))  # of a lesser group, formed while this one was out of sight
        self._budget.learn(last.restarts)
        has_ended = standing is Standing.IDLE
        patient_until = self._clock() + (self._patience.ended if has_ended else self._patience.adopt)
        for node in last.nodes:
            self.roster.agents.setdefault(node.token, Agent(node=node, peer=None, lost_at=patient_until))
        self.roster.generation = last
        self._forget_the_group()
        self._inspection.review(self.roster)
        # An agent without workers has seen the group end; the others are still to stop, or to say that they have.
        self.phase = Phase.STOPPING if has_ended else Phase.RUNNING

    def _resume(self, agent: Agent, hello: Hello) -> None:
        """It reconnects with workers of the current generation, or of one that is over."""
        is_member = self.roster.is_member(agent.node.token)
        is_current = is_member and hello.last is not None and hello.last.fence == self.roster.fence
        if not is_current or self.phase is not Phase.RUNNING:
            self._tell(agent, Stop(graceful=is_current and self._graceful))
        elif hello.standing is Standing.SUCCEEDED:
            self._succeeded.add(agent.node.token)

    def _joined(self, agent: Agent, join: Join) -> None:
        agent.port, agent.is_prepared, agent.is_aside = join.port, join.is_prepared, False
        if self._is_busy(agent):
            self._change(graceful=False)  # its workers ended and we never heard why
        elif not self._inspection.holds_up(agent, self.roster):
            self._comes(agent)

    def _comes(self, agent: Agent) -> None:
        """It may be taken in."""
        if self.phase is Phase.RUNNING and should_prepare(agent, self.roster):
            agent.port, agent.was_asked_to_prepare = None, True
            self._tell(agent, Prepare())
        elif not self.roster.is_member(agent.node.token):
            self._candidates.came(self._clock())

    # ------------------------------------------------------------------ a group ends

    def _leaves(self, agent: Agent, leave: Leave) -> None:
        if (failure := leave.giving_up) and self.over is None:
            self._end(Over(verdict=Verdict.FAILED, exit_code=failure.exit_code, failure=failure))
        was_busy = self._is_busy(agent)
        agent.leaving = True
        self._said_goodbye.add(agent.node.token)
        agent.lost_at = self._clock() if leave.has_left else agent.lost_at
        if was_busy:
            self._change(graceful=True)

    def _failed(self, failure: Failure, *, agreed: bool) -> None:
        if failure.generation == self.roster.number and self.phase in {Phase.RUNNING, Phase.STOPPING}:
            self._first = earlier(self._first, failure)
            self._stop(graceful=agreed)

    def _steps_aside(self, agent: Agent) -> None:
        """The next group may be formed without it; it joins when it can be taken in without a wait."""
        if self._is_busy(agent):
            self._change(graceful=False)  # its workers ended and we never heard why
        agent.is_prepared, agent.is_aside = False, True

    def _change(self, *, graceful: bool) -> None:
        """The membership changes, which is nobody's fault."""
        self._membership_changed = True
        self._stop(graceful=graceful)

    def _stop(self, *, graceful: bool) -> None:
        if self.phase is Phase.STOPPING and self._graceful <= graceful:
            return
        self.phase = Phase.STOPPING
        self._graceful = graceful
        for agent in self.roster.members():
            if agent.port is None:
                self._tell(agent, Stop(graceful=graceful))

    def _forget_the_lost(self) -> None:
        for agent in self.roster.take_lost(self._clock()):
            if not self.roster.is_member(agent.node.token):
                continue
            if self.phase is Phase.STOPPING:
                self._membership_changed = True
            elif self._is_busy(agent):
                self._change(graceful=False)

    def _settle_if_stopped(self) -> None:
        """When nothing of the group runs any more, say why it ended and whether there is a next one."""
        if not all(agent.has_stopped for agent in self.roster.members()):
            return
        cause, code = self._budget.judge(self._first, self._policy, membership_changed=self._membership_changed)
        if 0 < code < exitcodes.RETRYABLE:
            self._end(Over(verdict=Verdict.FAILED, exit_code=code, failure=self._first))
            return
        if code:
            # The pods that come next, if any, go on with the run's numbers, but nothing of these may linger.
            self._end(Over(verdict=Verdict.RETRY, exit_code=code, failure=self._first))
            self.roster.agents.clear()
        self._budget.count(cause)
        self.phase = Phase.FORMING
        self._candidates.begin(self._clock())

    def _end(self, over: Over) -> None:
        over = replace(over, restarts=dict(self._budget.restarts))
        for agent in self.roster.agents.values():
            self._tell(agent, over)
        if over.verdict is not Verdict.RETRY:
            self.over = over
            self.phase = Phase.OVER

    def _part_if_all_may(self) -> None:
        """See :mod:`~ddp_trainer.launch.parting`."""
        if not self.has_parted and all(agent.leaving for agent in self.roster.connected()):
            self.has_parted = True
            for agent in self.roster.connected():
                self._tell(agent, Part())

    def _hear_of_hang(self, agent: Agent, message: Alarm | Looks) -> None:
        """Somebody does not move; a worker that its agent kills for it then fails as any other."""
        busy = [member for member in self.roster.members() if self._is_busy(member)]
        if told := self._judge.receive(agent.node.token, message, {each.node.token for each in busy}, self._clock()):
            for member in busy:
                self._tell(member, told)

    # ------------------------------------------------------------------ a group begins, grows, completes

    def _complete_or_grow(self) -> None:
        nodes = self.roster.generation.nodes if self.roster.generation else ()
        if all(node.token in self._succeeded for node in nodes):
            self._end(Over(verdict=Verdict.SUCCEEDED, exit_code=Exit.SUCCESS))
        elif self._grow_at() <= self._clock():
            self._change(graceful=True)

    def _grow_at(self) -> float:
        """When the group is stopped for newcomers; never while it completes."""
        return math.inf if self._succeeded else self._candidates.grow_at(self.roster, self._policy, self._room())

    def _form_at(self) -> float:
        """When those that are ready become a group."""
        return self._candidates.form_at(self.roster, self._policy, self._may_form_at)

    def _form_if_due(self) -> None:
        if self._policy is None or self._form_at() > self._clock():
            return
        ready = self.roster.ready()
        veterans = {node.token for node in self.roster.generation.nodes} if self.roster.generation else set()
        nodes = tuple(choose([agent.node for agent in ready.values()], veterans, self._policy.max_nodes))
        self._highest_number += 1
        generation = Generation(
            number=self._highest_number,
            fence=max(self.roster.fence + 1, int(self._wall_clock() * 1000)),
            nodes=nodes,
            master_address=nodes[0].address,
            master_port=ready[nodes[0].token].port or 0,
            restarts=dict(self._budget.restarts),
            restarts_left=self._budget.left(self._policy),
        )
        self.roster.generation = generation
        self._forget_the_group()
        self.phase = Phase.RUNNING
        for token, agent in ready.items():
            if self.roster.is_member(token):
                agent.port, agent.fitness = None, Fitness.FIT
                self._tell(agent, Start(generation=generation))
            else:
                self._tell(agent, Waiting(nodes=len(nodes), spare=True))
        self._inspection.review(self.roster)

    def _announce(self) -> None:
        for agent, waiting in self._roll_call.news(self.roster.ready() if self._is_short() else {}, self._policy):
            self._tell(agent, waiting)

    # ------------------------------------------------------------------ small questions

    @property
    def misses_a_member(self) -> bool:
        """The run has succeeded, and a node went away before it could say so: its next pod will ask."""
        nodes = self.roster.generation.nodes if self.roster.generation else ()
        has_succeeded = self.over is not None and self.over.verdict is Verdict.SUCCEEDED
        return has_succeeded and any(node.token not in self._said_goodbye for node in nodes)

    def _is_short(self) -> bool:
        """Whether a group is wanted and there are too few for one."""
        least = self._policy.min_nodes if self._policy else 1
        return self.phase is Phase.FORMING and len(self.roster.ready()) < least

    def _tell(self, agent: Agent, message: FromStore) -> None:
        if agent.peer is not None:
            self._send(agent.peer, message)

    def _is_busy(self, agent: Agent) -> bool:
        """Its workers run for the group, as far as we know."""
        token = agent.node.token
        return self.phase is Phase.RUNNING and self.roster.is_member(token) and token not in self._succeeded

    def _room(self) -> int:
        """How many more nodes the group could have."""
        group = self.roster.generation.nodes if self.roster.generation and self.phase is not Phase.FORMING else ()
        return self._policy.max_nodes - len(group) if self._policy else 0
