"""State machine of the store, which forms the worker groups of one run from its agents.

::

                     enough nodes joined
          FORMING ─────────────────────────▶ RUNNING ── every member succeeded ──▶ OVER
             ▲                                  │                                   ▲
             │ the cause is free,               │ a failure, a loss,                │
             │ or the budget allows             ▼ a newcomer, a leave               │
             └──────────────────────────────STOPPING ── the budget is spent ────────┘
                                    (until every member has stopped, or is gone)

There is one :class:`Membership` per run. It has no socket, and its clock is a parameter. Its driver passes messages to
it, and calls :meth:`Membership.tick` at :meth:`Membership.deadline`.

Only this machine makes generations. It makes one only when no member of the last one is known to run, so two groups
never run together. The number of a generation only grows, even over a store without state, because agents report their
last one. The fence of a generation grows with the nodes' clocks even when no agent is left to report.

Every agent holds the secret of the run but may still be wrong. A message therefore counts only for the agent of its
connection. Failures and looks count only for that agent's ranks, and only from a member of the newest group. A name
belongs to its connection until that agent is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.failures.failure_reason import MESSAGE_CHARACTERS, root_cause, shorten
from ddp_trainer.launch.protocol.generation import Assignment, Generation
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
    Policy,
    PreflightResult,
    Prepare,
    RankStates,
    Rejected,
    ReusableWorkers,
    StandBy,
    Start,
    Stop,
    Succeeded,
    SuspectHang,
    Verdict,
    Waiting,
    WorkerState,
    encode,
)
from ddp_trainer.launch.protocol.timeouts import PATIENCE, Timeouts
from ddp_trainer.launch.rendezvous.admission import (
    MOST_AHEAD,
    is_newer_group,
    rejected_agents,
    rejection_reason,
    should_prepare,
)
from ddp_trainer.launch.rendezvous.hang_decision import HangAnalyzer
from ddp_trainer.launch.rendezvous.join_checks import JoinChecks
from ddp_trainer.launch.rendezvous.join_window import JoinWindow
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry, PreflightState
from ddp_trainer.launch.rendezvous.ranks import choose
from ddp_trainer.launch.rendezvous.restart_budget import Budget
from ddp_trainer.launch.rendezvous.waiting_notifications import MOST_TOLD, WaitingNotifier

_NAME_IS_TAKEN: Final = (
    "Another agent named {name} is connected, and this one takes its place when that one has gone; "
    "give each node a name of its own if both are to run."
)


class Phase(Enum):
    """Phase of the run."""

    FORMING = auto()
    RUNNING = auto()
    STOPPING = auto()
    OVER = auto()


class Membership:
    """State of one run. ``send(peer, message)`` must not call back into this object."""

    def __init__(
        self,
        send: Callable[[int, FromStore], None],
        clock: Callable[[], float],
        *,
        run_id: str = "",
        patience: Timeouts = PATIENCE,
    ) -> None:
        self.run_id = run_id
        """Id of the run; empty until the first agent has sent it."""
        self.phase = Phase.FORMING
        self.roster = NodeRegistry()
        self.over: Over | None = None
        self.has_parted = False
        """The run is over, and all members of its last group are done."""
        self._arrived: list[Agent] = []
        """Agents that have just joined. They get a reply once it is clear whether they are in a group."""
        self._said_goodbye: set[str] = set()
        self._send = send
        self._clock = clock
        self._patience = patience
        self._policy: Policy | None = None
        self._highest_number = 0
        self._budget = Budget()
        self._roll_call = WaitingNotifier()
        self._may_form_at = clock() + patience.first
        self._candidates = JoinWindow()
        self._inspection = JoinChecks()
        self._reset_group_state()

    def _reset_group_state(self) -> None:
        """Reset the state of one group before the next one begins."""
        self._succeeded: set[str] = set()
        self._first: Failure | None = None
        self._membership_changed = False
        self._graceful = True
        self._candidates.first_at = math.inf
        self._judge = HangAnalyzer()

    # ------------------------------------------------------------------ events

    def handle_and_tick(self, peer: int, message: FromAgent) -> None:
        """Process a message, then do what is due. Messages before Hello are ignored."""
        self.handle_message(peer, message)
        self.tick()

    def handle_message(self, peer: int, message: FromAgent) -> None:
        """Process a message without :meth:`tick`, so that one tick can serve many messages."""
        agent = self.roster.of_peer(peer)
        if isinstance(message, Hello):
            self._register_agent(peer, message)
        elif agent:
            self._dispatch_message(agent, message)
            if isinstance(message, Join | PreflightResult):
                self._arrived.append(agent)

    def _dispatch_message(self, agent: Agent, message: FromAgent) -> None:
        match message:
            case Join():
                self._on_join(agent, message)
            case Failed() if self._is_valid_failure(agent, message.failure):
                self._failed(replace(message.failure, node=agent.node.name), agreed=message.agreed)
            case Succeeded() if message.generation == self.roster.number and self.roster.is_member(agent.node.token):
                self._succeeded.add(agent.node.token)
            case Leave():
                self._leaves(agent, message)
            case StandBy() if message.generation == self.roster.number and self.roster.is_member(agent.node.token):
                self._on_standby(agent)
            case ReusableWorkers():
                agent.outlive = message.able
            case PreflightResult() if self._inspection.record_result(agent, message, self.roster, self._clock()):
                self._add_candidate(agent)
            case SuspectHang() | RankStates() if (
                self._has_running_workers(agent) and message.generation == self.roster.number
            ):
                self._process_hang_message(agent, message)
            case _:
                pass

    def lost(self, peer: int) -> None:
        """Process the loss of a connection, then do what is due."""
        self.drop(peer)
        self.tick()

    def drop(self, peer: int) -> None:
        """Process the loss of a connection without :meth:`tick`."""
        if agent := self.roster.of_peer(peer):
            patience = 0 if agent.leaving else self._patience.reconnect
            self.roster.mark_disconnected(agent)
            self.roster.set_deadline(agent, self._clock() + patience)

    def tick(self) -> None:
        """Do what is due at the current time."""
        steps = {
            Phase.FORMING: self._form_if_due,
            Phase.RUNNING: self._complete_or_scale_up,
            Phase.STOPPING: self._finalize_if_stopped,
            Phase.OVER: self._part_if_all_may,
        }
        for agent, meet in list(self._inspection.begin(self.roster, self._clock())):
            self._send_to_agent(agent, meet) if meet else self._add_candidate(agent)
        phase = None
        while phase is not self.phase:
            phase = self.phase
            self._remove_lost_agents()
            steps.get(self.phase, lambda: None)()
        self._reply_to_joins()
        self._notify_waiting()

    def deadline(self) -> float | None:
        """Return the time at which :meth:`tick` is due next if nothing else happens; None for never."""
        questions = {Phase.FORMING: self._form_at, Phase.RUNNING: self._scale_up_at}
        due = questions.get(self.phase, lambda: math.inf)()
        soonest = min(self._inspection.deadline(), self.roster.next_loss(), due)
        return None if math.isinf(soonest) else soonest

    # ------------------------------------------------------------------ arrivals

    def _register_agent(self, peer: int, hello: Hello) -> None:
        if why := rejection_reason(hello, self.run_id, self.roster):
            self._send(peer, Rejected(why=why, exit_code=Exit.RENDEZVOUS_LOST))
            return
        if self.over:
            code = self.over.exit_code if self.over.verdict is Verdict.SUCCEEDED else Exit.DO_NOT_RESTART
            self._send(peer, replace(self.over, late=True, exit_code=code))
            self._send(peer, Part())
            return
        self.run_id = hello.run_id
        self._policy = self._policy or hello.policy
        agent = Agent.of(hello, peer, self.roster.agents.get(hello.node.token), self._clock())
        self._claim_name(agent)
        self.roster.add(agent)
        if agent.waits_for_name:
            self._send_to_agent(
                agent, Waiting(nodes=0, spare=False, namesake=_NAME_IS_TAKEN.format(name=agent.node.name))
            )
        if hello.last:
            if hello.last.number <= self._highest_number + MOST_AHEAD:
                self._highest_number = max(self._highest_number, hello.last.number)
            if is_newer_group(hello, self.roster, self._now_ms([agent])):
                self._restore_generation(hello, hello.last)
            else:
                self.roster.claim(hello.last, hello.node)
        if hello.standing is not WorkerState.IDLE:
            self._resume(agent, hello)

    def _claim_name(self, agent: Agent) -> None:
        """Let a recreated pod wait for its name until the former pod is lost or leaves."""
        known = self.roster.agents.get(agent.node.token)
        if known and not known.waits_for_name:
            return  # it already has the name and reconnects
        namesakes = self.roster.agents_with_same_name(agent.node)
        if not all(namesake.leaving for namesake in namesakes):
            agent.waits_for_name = True
            return
        for namesake in namesakes:
            why = f"Another pod named {agent.node.name} has taken the place of this one."
            self._send_to_agent(namesake, Rejected(why=why, exit_code=Exit.STALE_GENERATION))
            self.roster.mark_disconnected(namesake)
            self.roster.set_deadline(namesake, -math.inf)
        self._remove_lost_agents()

    def _restore_generation(self, hello: Hello, last: Assignment) -> None:
        """Adopt a generation that this store does not have, because the store is younger than the run."""
        for agent in self.roster.members():
            if agent.port is None:
                # This group has a lower fence. It formed while the reported one had no connection.
                self._send_to_agent(agent, Stop(graceful=False))
        self._budget.merge_counts(last.restarts)
        has_ended = hello.standing is WorkerState.IDLE
        patience = self._patience.ended if has_ended else self._patience.adopt
        self.roster.restore_generation(last, hello.node, self._clock() + patience)
        self._reset_group_state()
        self._inspection.review(self.roster)
        # An agent without workers has seen the group end. The others must still stop, or report that they have.
        self.phase = Phase.STOPPING if has_ended else Phase.RUNNING
        for intruder, why in rejected_agents(hello, self.roster):
            self._send_to_agent(intruder, Rejected(why=why, exit_code=Exit.RENDEZVOUS_LOST))
            self.roster.remove(intruder.node.token)

    def _resume(self, agent: Agent, hello: Hello) -> None:
        """Process a reconnect with workers of the current generation, or of one that is over."""
        is_member = self.roster.is_member(agent.node.token)
        is_current = is_member and hello.last is not None and hello.last.fence == self.roster.fence
        if not is_current or self.phase is not Phase.RUNNING:
            self._send_to_agent(agent, Stop(graceful=is_current and self._graceful))
        elif hello.standing is WorkerState.SUCCEEDED:
            self._succeeded.add(agent.node.token)

    def _on_join(self, agent: Agent, join: Join) -> None:
        agent.port, agent.is_prepared, agent.is_aside = join.port, join.is_prepared, False
        if self._has_running_workers(agent):
            self._change(graceful=False)  # its workers ended without a report of the reason
        elif not self._inspection.holds_up(agent, self.roster):
            self._add_candidate(agent)

    def _add_candidate(self, agent: Agent) -> None:
        """Handle a node that a group may accept."""
        if self.phase is Phase.RUNNING and should_prepare(agent, self.roster):
            agent.port, agent.was_asked_to_prepare = None, True
            self._send_to_agent(agent, Prepare())
        elif not self.roster.is_member(agent.node.token):
            self._candidates.record_arrival(self._clock())

    # ------------------------------------------------------------------ a group ends

    def _leaves(self, agent: Agent, leave: Leave) -> None:
        was_busy = self._has_running_workers(agent)
        agent.leaving = True
        self._said_goodbye.add(agent.node.token)
        if leave.has_left:
            self.roster.set_deadline(agent, self._clock())
        if was_busy:
            self._change(graceful=True)

    def _failed(self, failure: Failure, *, agreed: bool) -> None:
        if failure.generation == self.roster.number and self.phase in {Phase.RUNNING, Phase.STOPPING}:
            self._first = root_cause(self._first, failure)
            self._stop(graceful=agreed)

    def _on_standby(self, agent: Agent) -> None:
        """Allow the next group to form without a node. The node joins when that needs no wait."""
        if self._has_running_workers(agent):
            self._change(graceful=False)  # its workers ended without a report of the reason
        agent.is_prepared, agent.is_aside = False, True

    def _change(self, *, graceful: bool) -> None:
        """Stop the group for a change of membership, which does not use up the restart budget."""
        self._membership_changed = True
        self._stop(graceful=graceful)

    def _stop(self, *, graceful: bool) -> None:
        if self.phase is Phase.STOPPING and self._graceful <= graceful:
            return
        self.phase = Phase.STOPPING
        self._graceful = graceful
        for agent in self.roster.members():
            if agent.port is None:
                self._send_to_agent(agent, Stop(graceful=graceful))

    def _remove_lost_agents(self) -> None:
        for agent in self.roster.take_lost(self._clock()):
            self._pass_on_name(agent)
            if not self.roster.is_member(agent.node.token):
                continue
            if self.phase is Phase.STOPPING:
                self._membership_changed = True
            elif self._has_running_workers(agent):
                self._change(graceful=False)

    def _pass_on_name(self, lost: Agent) -> None:
        """Give the name of a lost agent to the agent that has waited for it longest."""
        if lost.waits_for_name:
            return  # it had no name
        heir = min(
            (each for each in self.roster.agents_with_same_name(lost.node) if each.waits_for_name),
            key=_connection_order,
            default=None,
        )
        if heir is not None:
            heir.waits_for_name = False
            if heir.port is not None and not self._inspection.holds_up(heir, self.roster):
                self._add_candidate(heir)

    def _finalize_if_stopped(self) -> None:
        """After all workers of the group have stopped, end the run or start to form the next group."""
        if not all(agent.has_stopped for agent in self.roster.members()):
            return
        cause, code = self._budget.decide_restart(
            self._first, self._policy, membership_changed=self._membership_changed
        )
        if code:
            self._end(Over(verdict=Verdict.FAILED, exit_code=code, failure=self._first))
            return
        self._budget.count(cause)
        self.phase = Phase.FORMING
        self._candidates.begin(self._clock())

    def _end(self, over: Over) -> None:
        over = replace(over, restarts=dict(self._budget.restarts))
        if over.failure and len(self.roster.agents) > MOST_TOLD:
            short = shorten(over.failure.stack, MESSAGE_CHARACTERS)
            over = replace(over, failure=replace(over.failure, stack=short))
        for agent in self.roster.agents.values():
            self._send_to_agent(agent, over)
        self.over = over
        self.phase = Phase.OVER

    def _part_if_all_may(self) -> None:
        """Release all agents when all members are done. See :mod:`~ddp_trainer.launch.agent.exit_barrier`."""
        waited_for = [agent for agent in self.roster.members() if agent.peer is not None]
        if not self.has_parted and all(agent.leaving for agent in waited_for):
            self.has_parted = True
            for agent in self.roster.connected():
                self._send_to_agent(agent, Part())

    def _process_hang_message(self, agent: Agent, message: SuspectHang | RankStates) -> None:
        """Process a report of a rank without progress. A worker that its agent kills for it fails like any other."""
        if isinstance(message, RankStates):
            own = tuple(replace(look, node=agent.node.name) for look in message.ranks if agent.has_rank(look.rank))
            message = replace(message, ranks=own)
        busy = [member for member in self.roster.members() if self._has_running_workers(member)]
        if told := self._judge.update(agent.node.token, message, {each.node.token for each in busy}, self._clock()):
            for member in busy:
                size = member.node.local_world_size
                self._send_to_agent(
                    member, told.for_node(member.first_rank, size) if isinstance(told, HangingRanks) else told
                )

    # ------------------------------------------------------------------ a group begins, grows, completes

    def _complete_or_scale_up(self) -> None:
        nodes = self.roster.generation.nodes if self.roster.generation else ()
        if len(self._succeeded) == len(nodes):
            self._end(Over(verdict=Verdict.SUCCEEDED, exit_code=Exit.SUCCESS))
        elif self._scale_up_at() <= self._clock():
            self._change(graceful=True)

    def _scale_up_at(self) -> float:
        """Return the time at which the group stops for newcomers; never while it completes."""
        return (
            math.inf if self._succeeded else self._candidates.scale_up_at(self.roster, self._policy, self._free_slots())
        )

    def _form_at(self) -> float:
        return self._candidates.form_at(self.roster, self._policy, self._may_form_at)

    def _form_if_due(self) -> None:
        if self._policy is None or self._form_at() > self._clock():
            return
        ready = self.roster.ready()
        veterans = {node.token for node in self.roster.generation.nodes} if self.roster.generation else set()
        nodes = tuple(choose([agent.node for agent in ready.values()], veterans, self._policy.max_nodes))
        generation = Generation(
            number=self._highest_number + 1,
            fence=max(self.roster.fence + 1, int(self._now_ms([ready[node.token] for node in nodes]))),
            nodes=nodes,
            master_address=nodes[0].address,
            master_port=ready[nodes[0].token].port or 0,
            restarts=dict(self._budget.restarts),
            restarts_left=self._budget.left(self._policy),
        )
        starts = {node.token: Start(assignment=assignment) for node, assignment in generation.assignments()}
        encode(starts[nodes[0].token])  # an unsendable message must not become the state
        self._highest_number = generation.number
        self.roster.begin(generation)
        self._reset_group_state()
        self.phase = Phase.RUNNING
        for token, agent in ready.items():
            if start := starts.get(token):
                agent.port, agent.fitness = None, PreflightState.FIT
                agent.first_rank = start.assignment.first_rank
                self._send_to_agent(agent, start)
            else:
                self._send_to_agent(agent, Waiting(nodes=len(nodes), spare=True))
        self._inspection.review(self.roster)

    def _reply_to_joins(self) -> None:
        arrived, self._arrived = self._arrived, []
        waiting = [agent for agent in arrived if agent.is_ready and not self.roster.is_member(agent.node.token)]
        if waiting and not self._is_short():
            told = Waiting(nodes=len(self.roster.ready()), spare=self._free_slots() <= 0)
            for agent in waiting:
                self._send_to_agent(agent, told)

    def _notify_waiting(self) -> None:
        for agent, waiting in self._roll_call.notifications(
            self.roster.ready() if self._is_short() else {}, self._policy
        ):
            self._send_to_agent(agent, waiting)

    # ------------------------------------------------------------------ queries

    @property
    def has_missing_member(self) -> bool:
        """True if the run has succeeded but a node left before it reported the end.

        The pod that replaces the node will connect.
        """
        nodes = self.roster.generation.nodes if self.roster.generation else ()
        has_succeeded = self.over is not None and self.over.verdict is Verdict.SUCCEEDED
        return has_succeeded and any(node.token not in self._said_goodbye for node in nodes)

    def _is_valid_failure(self, agent: Agent, failure: Failure) -> bool:
        """Return whether a member of the newest group reports a failure of one of its ranks."""
        return self.roster.is_member(agent.node.token) and agent.has_rank(failure.rank)

    def _now_ms(self, agents: Sequence[Agent]) -> float:
        """Return milliseconds since the epoch by the median of the agents' clocks, which ignores one wrong clock."""
        return 1000 * (self._clock() + statistics.median_low(agent.clock_offset for agent in agents))

    def _is_short(self) -> bool:
        """Return whether a group is wanted but there are too few nodes."""
        least = self._policy.min_nodes if self._policy else 1
        return self.phase is Phase.FORMING and len(self.roster.ready()) < least

    def _send_to_agent(self, agent: Agent, message: FromStore) -> None:
        if agent.peer is not None:
            self._send(agent.peer, message)

    def _has_running_workers(self, agent: Agent) -> bool:
        """Return whether an agent's workers run for the group, as far as the store can see."""
        token = agent.node.token
        return self.phase is Phase.RUNNING and self.roster.is_member(token) and token not in self._succeeded

    def _free_slots(self) -> int:
        """Return the number of nodes that the group can still take."""
        group = self.roster.generation.nodes if self.roster.generation and self.phase is not Phase.FORMING else ()
        return self._policy.max_nodes - len(group) if self._policy else 0


def _connection_order(agent: Agent) -> int:
    """Sort key. Connections are numbered in the order in which they came."""
    return agent.peer or 0
