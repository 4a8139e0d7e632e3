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
it, and calls :meth:`Membership.reconcile` at :meth:`Membership.deadline`.

Only this machine makes generations. It makes one only when no member of the last one is known to run, so two groups
never run together. The number of a generation only grows, even over a store without state, because agents report their
last one. The fence of a generation grows with the nodes' clocks even when no agent is left to report.

A message counts only for the agent of its connection. Who is there, may take part and has which name is in
:mod:`~ddp_trainer.launch.rendezvous.node_registry`; when a group forms and from which nodes, in
:mod:`~ddp_trainer.launch.rendezvous.group_formation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch.failures import Budget, root_cause, shorten
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.message_fields import MESSAGE_CHARACTERS
from ddp_trainer.launch.protocol.messages import Failure, Over, Part, Verdict
from ddp_trainer.launch.protocol.timeouts import Timeouts
from ddp_trainer.launch.rendezvous.group_formation import (
    MAX_NOTIFIED_NODES,
    JoinChecks,
    JoinWindow,
    WaitingNotifier,
    form_group,
    start_messages,
)
from ddp_trainer.launch.rendezvous.hang_decision import HangAnalyzer
from ddp_trainer.launch.rendezvous.node_registry import (
    MOST_AHEAD,
    NodeRegistry,
    RegisteredAgent,
    claim_name,
    has_other_numbers,
    is_newer_group,
    median_time_ms,
    name_conflict_message,
    pass_on_name,
    rejected_agents,
    rejection_reason,
    should_prepare,
)


@dataclass(slots=True)
class GroupProgress:
    """Events of a group since it formed."""

    succeeded: set[str] = field(default_factory=set)
    """Tokens of the members whose workers have all exited with 0."""
    first_failure: Failure | None = None
    membership_changed: bool = False
    """The group stops because a node is lost, new or leaving."""
    is_graceful: bool = True
    """All nodes are alive, so the workers can finish their step and save when they stop."""
    hangs: HangAnalyzer = field(default_factory=HangAnalyzer)


class RunEnd:
    """Result of one run, and the members that are done."""

    def __init__(self, registry: NodeRegistry) -> None:
        self.over: Over | None = None
        self.summary = ""
        """Summary that the node of rank 0 sent when its workers succeeded. That of a completed group is the last."""
        self.has_parted = False
        """The run is over, and all members of its last group are done."""
        self._registry = registry
        self._done: set[str] = set()

    def mark_done(self, token: str) -> None:
        """Record that an agent has received the end, or leaves before it."""
        self._done.add(token)

    def begin(self, over: Over, restarts: Mapping[str, int]) -> Over:
        """Return the result as the agents receive it."""
        over = replace(over, restarts=dict(restarts))
        if over.failure and len(self._registry.agents) > MAX_NOTIFIED_NODES:
            short = shorten(over.failure.stack, MESSAGE_CHARACTERS)
            over = replace(over, failure=replace(over.failure, stack=short))
        self.over = over
        return over

    def for_node(self, over: Over, token: str) -> Over:
        """Return the result for a node, with the summary if it had no part in the end."""
        return over if self._registry.is_member(token) else replace(over, summary=self.summary)

    def late_messages(self, token: str) -> tuple[()] | tuple[Over, Part]:
        """Return the messages to an agent that connects when the run is over; none while it is not."""
        if self.over is None:
            return ()
        code = self.over.exit_code if self.over.verdict is Verdict.SUCCEEDED else Exit.DO_NOT_RESTART
        return self.for_node(replace(self.over, late=True, exit_code=code), token), Part()

    def part(self) -> bool:
        """Return whether all agents are released now. See :mod:`~ddp_trainer.launch.agent.agent`."""
        waited_for = [agent for agent in self._registry.members() if agent.peer is not None]
        if self.has_parted or not all(agent.leaving for agent in waited_for):
            return False
        self.has_parted = True
        return True

    @property
    def has_missing_member(self) -> bool:
        """True if the run has succeeded but a node left before it reported the end.

        The pod that replaces the node will connect.
        """
        nodes = self._registry.generation.nodes if self._registry.generation else ()
        has_succeeded = self.over is not None and self.over.verdict is Verdict.SUCCEEDED
        return has_succeeded and any(node.token not in self._done for node in nodes)


class RunPhase(Enum):
    """Phase of the run."""

    FORMING = auto()
    RUNNING = auto()
    STOPPING = auto()
    OVER = auto()


class Membership:
    """State of one run. ``send(peer, message)`` must not call back into this object."""

    def __init__(
        self,
        send: Callable[[int, messages.FromStore], None],
        clock: Callable[[], float],
        *,
        timeouts: Timeouts,
        run_id: str = "",
        check_message: Callable[[messages.FromStore], object] | None = messages.encode,
    ) -> None:
        """Initialize the state.

        Args:
            send: Sends a message to the agent of a connection.
            clock: Returns monotonic seconds.
            timeouts: Timeouts of the store.
            run_id: Id of the run, if it is known.
            check_message: Raises an error for a message that cannot be sent; None if every message can.
        """
        self.run_id = run_id
        """Id of the run; empty until the first agent has sent it."""
        self.phase = RunPhase.FORMING
        self.registry = NodeRegistry()
        self.end = RunEnd(self.registry)
        self._send = send
        self._check_message = check_message
        self._clock = clock
        self._timeouts = timeouts
        self._policy: messages.Policy | None = None
        self._highest_number = 0
        self._budget = Budget()
        self._notifier = WaitingNotifier()
        self._may_form_at = clock() + timeouts.first
        self._candidates = JoinWindow()
        self._join_checks = JoinChecks()
        self._imports: messages.WorkerImports | None = None
        self._reset_group_state()

    def _reset_group_state(self) -> None:
        """Reset the state of one group before the next one begins."""
        self._group = GroupProgress()
        self._candidates = JoinWindow(last_at=self._candidates.last_at)

    # ------------------------------------------------------------------ events

    def handle_message(self, peer: int, message: messages.FromAgent) -> None:
        """Process a message without :meth:`reconcile`, so that one call can serve many messages.

        Messages before Hello are ignored.
        """
        if isinstance(message, messages.Hello):
            self._register_agent(peer, message)
            self._pass_on_imports(self.registry.of_peer(peer))
        elif agent := self.registry.sender_of(peer, message):
            self._dispatch_message(agent, message)

    def _dispatch_message(self, agent: RegisteredAgent, message: messages.FromAgent) -> None:
        match message:
            case messages.Join():
                self._on_join(agent, message)
            case messages.Failed():
                self._failed(replace(message.failure, node=agent.node.name), agreed=message.agreed)
            case messages.Succeeded():
                self._group.succeeded.add(agent.node.token)
                self.end.summary = message.summary or self.end.summary
            case messages.Leave():
                self._leaves(agent, message)
            case messages.StandBy():
                self._on_standby(agent)
            case messages.WorkerImports():
                self._record_imports(message)
            case messages.ReusableWorkers():
                agent.outlive = message.able
                self._prepare_spares()
            case messages.PreflightResult():
                self._on_preflight_result(agent, message)
            case messages.SuspectHang() | messages.RankStates() if self._has_running_workers(agent):
                self._process_hang_message(agent, message)

    def drop(self, peer: int) -> None:
        """Process the loss of a connection without :meth:`reconcile`."""
        if agent := self.registry.of_peer(peer):
            seconds = 0 if agent.leaving else self._timeouts.reconnect
            self.registry.mark_disconnected(agent)
            self.registry.set_deadline(agent, self._clock() + seconds)

    def reconcile(self) -> float | None:
        """Do what is due at the current time, and return the next :meth:`deadline`."""
        steps = {
            RunPhase.FORMING: self._form_if_due,
            RunPhase.RUNNING: self._complete_or_scale_up,
            RunPhase.STOPPING: self._finalize_if_stopped,
            RunPhase.OVER: self._part_if_all_may,
        }
        if self._join_checks.watched:
            for agent, request in list(self._join_checks.begin(self.registry, self._clock())):
                self._send_to_agent(agent, request) if request else self._add_candidate(agent)
        phase = None
        while phase is not self.phase:
            phase = self.phase
            if self.registry.expiring:
                self._remove_lost_agents()
            steps.get(self.phase, lambda: None)()
        room, is_forming = self._free_slots(), self.phase is RunPhase.FORMING
        if is_forming or self._notifier.arrived or self._notifier.notified:
            for agent, notice in self._notifier.notices(self.registry, self._policy, room, is_forming=is_forming):
                self._send_to_agent(agent, notice)
        return self.deadline()

    def deadline(self) -> float | None:
        """Return the time at which :meth:`reconcile` is due next if nothing else happens; None for never."""
        questions = {RunPhase.FORMING: self._form_at, RunPhase.RUNNING: self._scale_up_at}
        soonest = questions.get(self.phase, lambda: math.inf)()
        if self._join_checks.watched:
            soonest = min(soonest, self._join_checks.deadline())
        if self.registry.expiring:
            soonest = min(soonest, self.registry.next_loss())
        return None if math.isinf(soonest) else soonest

    # ------------------------------------------------------------------ arrivals

    def _register_agent(self, peer: int, hello: messages.Hello) -> None:
        if why := rejection_reason(hello, self.run_id, self.registry):
            self._send(peer, messages.Rejected(why=why, exit_code=Exit.RENDEZVOUS_LOST))
            return
        if late := self.end.late_messages(hello.node.token):
            for message in late:
                self._send(peer, message)
            return
        self.run_id = hello.run_id
        agent = RegisteredAgent.of(hello, peer, self.registry.agents.get(hello.node.token), self._clock())
        self._claim_name(agent)
        self.registry.add(agent)
        self._compare_policy(agent, hello.policy)
        if agent.waits_for_name:
            self._send_to_agent(agent, name_conflict_message(agent))
        elif self._count_crash(agent):
            return
        if hello.last:
            if hello.last.number <= self._highest_number + MOST_AHEAD:
                self._highest_number = max(self._highest_number, hello.last.number)
            if is_newer_group(hello, self.registry, median_time_ms([agent], self._clock())):
                self._restore_generation(hello, hello.last)
            else:
                self.registry.claim(hello.last, hello.node)
        if hello.standing is not messages.WorkerState.IDLE:
            self._resume(agent, hello)

    def _record_imports(self, imports: messages.WorkerImports) -> None:
        self._imports = imports
        for agent in self.registry.connected():
            self._pass_on_imports(agent)

    def _pass_on_imports(self, agent: RegisteredAgent | None) -> None:
        """Send a node outside of the group what the group's workers have imported."""
        if agent and self._imports and not self.registry.is_member(agent.node.token):
            self._send_to_agent(agent, self._imports)

    def _compare_policy(self, agent: RegisteredAgent, policy: messages.Policy) -> None:
        """Take the settings of the run from its first agent, and warn later ones that have others."""
        self._policy = self._policy or policy
        if has_other_numbers(policy, self._policy):
            self._send_to_agent(agent, messages.OtherPolicy(policy=self._policy))

    def _claim_name(self, agent: RegisteredAgent) -> None:
        """Let a recreated pod wait for its name until the former pod is lost or leaves."""
        if (namesakes := claim_name(agent, self.registry)) is None:
            return
        for namesake in namesakes:
            why = f"Another pod named {agent.node.name} has taken the place of this one."
            self._send_to_agent(namesake, messages.Rejected(why=why, exit_code=Exit.STALE_GENERATION))
            self.registry.mark_disconnected(namesake)
            self.registry.set_deadline(namesake, -math.inf)
        self._remove_lost_agents()

    def _count_crash(self, agent: RegisteredAgent) -> bool:
        """Count the crash that an agent reports of the lost member before it. Returns true if that ends the run."""
        crash, agent.crash = agent.crash, None
        code = self._budget.count_crash(agent.node.name, crash, self._policy)
        if code and crash:
            crash = replace(crash, node=agent.node.name)
            self._end(messages.Over(verdict=messages.Verdict.FAILED, exit_code=code, failure=crash))
        return bool(code)

    def _restore_generation(self, hello: messages.Hello, last: Assignment) -> None:
        """Adopt a generation that this store does not have, because the store is younger than the run."""
        for agent in self.registry.members():
            if agent.port is None:
                # This group has a lower fence. It formed while the reported one had no connection.
                self._send_to_agent(agent, messages.Stop(graceful=False))
        self._budget.merge_counts(last.restarts)
        has_ended = hello.standing is messages.WorkerState.IDLE
        seconds = self._timeouts.ended if has_ended else self._timeouts.adopt
        self.registry.restore_generation(last, hello.node, self._clock() + seconds)
        self._reset_group_state()
        self._join_checks.review(self.registry)
        # An agent without workers has seen the group end. The others must still stop, or report that they have.
        self.phase = RunPhase.STOPPING if has_ended else RunPhase.RUNNING
        for intruder, why in rejected_agents(hello, self.registry):
            self._send_to_agent(intruder, messages.Rejected(why=why, exit_code=Exit.RENDEZVOUS_LOST))
            self.registry.remove(intruder.node.token)
        for waiting in self.registry.ready().values():
            self._notifier.record_arrival(waiting)  # it came before the group, and may be a spare now

    def _resume(self, agent: RegisteredAgent, hello: messages.Hello) -> None:
        """Process a reconnect with workers of the current generation, or of one that is over."""
        is_member = self.registry.is_member(agent.node.token)
        is_current = is_member and hello.last is not None and hello.last.fence == self.registry.fence
        if not is_current or self.phase is not RunPhase.RUNNING:
            self._send_to_agent(agent, messages.Stop(graceful=is_current and self._group.is_graceful))
        elif hello.standing is messages.WorkerState.SUCCEEDED:
            self._group.succeeded.add(agent.node.token)

    def _on_join(self, agent: RegisteredAgent, join: messages.Join) -> None:
        agent.port, agent.is_prepared, agent.is_aside = join.port, join.is_prepared, False
        self._budget.has_stepped |= not join.is_before_first_step
        if self.registry.is_member(agent.node.token):
            agent.is_importing = False
            if self._has_running_workers(agent):
                self._change(graceful=False)  # its workers ended without a report of the reason
            return
        agent.is_importing = join.is_importing
        if not self._join_checks.holds_up(agent, self.registry):
            self._add_candidate(agent)
        self._record_arrival(agent)

    def _on_preflight_result(self, agent: RegisteredAgent, result: messages.PreflightResult) -> None:
        if self._join_checks.record_result(agent, result, self.registry, self._clock()):
            self._add_candidate(agent)
        self._record_arrival(agent)

    def _record_arrival(self, agent: RegisteredAgent) -> None:
        if not agent.is_importing:
            self._notifier.record_arrival(agent)

    def _add_candidate(self, agent: RegisteredAgent) -> None:
        """Handle a node that a group may accept."""
        if self.phase is RunPhase.RUNNING and should_prepare(agent, self.registry):
            self._request_prepare(agent)
        elif not self.registry.is_member(agent.node.token) and (
            self.phase is not RunPhase.RUNNING or not agent.is_importing
        ):
            self._candidates.record_arrival(self._clock())

    def _prepare_spares(self) -> None:
        """Let nodes prepare that joined before the members could keep their processes."""
        if self.phase is not RunPhase.RUNNING or not self._has_non_members():
            return
        for agent in self.registry.ready().values():
            if should_prepare(agent, self.registry):
                self._request_prepare(agent)

    def _request_prepare(self, agent: RegisteredAgent) -> None:
        agent.port, agent.was_asked_to_prepare = None, True
        self._send_to_agent(agent, messages.Prepare())

    # ------------------------------------------------------------------ a group ends

    def _leaves(self, agent: RegisteredAgent, leave: messages.Leave) -> None:
        was_busy = self._has_running_workers(agent)
        agent.leaving = True
        self.end.mark_done(agent.node.token)
        if leave.has_left:
            self.registry.set_deadline(agent, self._clock())
        if was_busy:
            self._change(graceful=True)

    def _failed(self, failure: messages.Failure, *, agreed: bool) -> None:
        if failure.generation == self.registry.number and self.phase in {RunPhase.RUNNING, RunPhase.STOPPING}:
            first = self._group.first_failure
            self._group.first_failure = failure if first is None else root_cause(first, failure)
            self._stop(graceful=agreed)

    def _on_standby(self, agent: RegisteredAgent) -> None:
        """Allow the next group to form without a node. The node joins when that needs no wait."""
        if self._has_running_workers(agent):
            self._change(graceful=False)  # its workers ended without a report of the reason
        agent.is_prepared, agent.is_aside = False, True
        self._budget.has_stepped = True  # only workers that have stepped outlive a group

    def _change(self, *, graceful: bool) -> None:
        """Stop the group for a change of membership, which does not use up the restart budget."""
        self._group.membership_changed = True
        self._stop(graceful=graceful)

    def _stop(self, *, graceful: bool) -> None:
        if self.phase is RunPhase.STOPPING and self._group.is_graceful <= graceful:
            return
        self.phase = RunPhase.STOPPING
        self._group.is_graceful = graceful
        for agent in self.registry.members():
            if agent.port is None:
                self._send_to_agent(agent, messages.Stop(graceful=graceful))

    def _remove_lost_agents(self) -> None:
        for agent in self.registry.take_lost(self._clock()):
            if self.registry.is_member(agent.node.token) and not agent.leaving:
                self._budget.record_lost_member(agent.node.name)
            heir = pass_on_name(agent, self.registry)
            if heir is not None and self._count_crash(heir):
                return
            if heir is not None and heir.port is not None and not self._join_checks.holds_up(heir, self.registry):
                self._add_candidate(heir)
            if not self.registry.is_member(agent.node.token):
                continue
            if self.phase is RunPhase.STOPPING:
                self._group.membership_changed = True
            elif self._has_running_workers(agent):
                self._change(graceful=False)

    def _finalize_if_stopped(self) -> None:
        """After all workers of the group have stopped, end the run or start to form the next group."""
        if not self.registry.has_stopped():
            return
        code = self._budget.decide_restart(
            self._group.first_failure, self._policy, membership_changed=self._group.membership_changed
        )
        if code:
            over = messages.Over(verdict=messages.Verdict.FAILED, exit_code=code, failure=self._group.first_failure)
            self._end(replace(over, repeats=self._budget.hopeless_after))
            return
        self.phase, now = RunPhase.FORMING, self._clock()
        self._candidates = JoinWindow(first_at=now, last_at=now)

    def _end(self, over: messages.Over) -> None:
        over = self.end.begin(over, self._budget.restarts)
        for agent in self.registry.agents.values():
            self._send_to_agent(agent, self.end.for_node(over, agent.node.token))
        self.phase = RunPhase.OVER

    def _part_if_all_may(self) -> None:
        """Release all agents when all members are done."""
        if self.end.part():
            for agent in self.registry.connected():
                self._send_to_agent(agent, messages.Part())

    def _process_hang_message(
        self, agent: RegisteredAgent, message: messages.SuspectHang | messages.RankStates
    ) -> None:
        """Process a report of a rank without progress. A worker that its agent kills for it fails like any other."""
        busy = [member for member in self.registry.members() if self._has_running_workers(member)]
        for member, reply in self._group.hangs.messages(agent, message, busy, self._clock()):
            self._send_to_agent(member, reply)

    # ------------------------------------------------------------------ a group begins, grows, completes

    def _complete_or_scale_up(self) -> None:
        nodes = self.registry.generation.nodes if self.registry.generation else ()
        if len(self._group.succeeded) == len(nodes):
            self._end(messages.Over(verdict=messages.Verdict.SUCCEEDED, exit_code=Exit.SUCCESS))
        elif self._scale_up_at() <= self._clock():
            self._change(graceful=True)

    def _scale_up_at(self) -> float:
        """Return the time at which the group stops for newcomers; never while it completes."""
        if self._group.succeeded or not self._has_non_members():
            return math.inf
        return self._candidates.scale_up_at(self.registry, self._policy, self._free_slots())

    def _has_non_members(self) -> bool:
        """Return whether there may be agents outside of the running group; a run of thousands of nodes has none."""
        return len(self.registry.agents) > (len(self.registry.generation.nodes) if self.registry.generation else 0)

    def _form_at(self) -> float:
        if self._policy is None:
            return math.inf
        ready = self.registry.candidates(self._policy.min_nodes)
        return self._candidates.form_at(ready, self.registry, self._policy, self._may_form_at)

    def _form_if_due(self) -> None:
        if self._policy is None:
            return
        ready, now = self.registry.candidates(self._policy.min_nodes), self._clock()
        if self._candidates.form_at(ready, self.registry, self._policy, self._may_form_at) > now:
            return
        number = self._highest_number + 1
        generation, starts = form_group(ready, self.registry, self._policy, self._budget, number=number, now=now)
        if self._check_message is not None:
            self._check_message(starts[generation.nodes[0].token])  # before it becomes the state
        self._highest_number = generation.number
        self.registry.begin(generation)
        self._reset_group_state()
        self.phase = RunPhase.RUNNING
        for agent, message in start_messages(ready, starts):
            self._send_to_agent(agent, message)
        if self._has_non_members():
            self._join_checks.review(self.registry)

    # ------------------------------------------------------------------ queries

    def _send_to_agent(self, agent: RegisteredAgent, message: messages.FromStore) -> None:
        if agent.peer is not None:
            self._send(agent.peer, message)

    def _has_running_workers(self, agent: RegisteredAgent) -> bool:
        """Return whether an agent's workers run for the group, as far as the store can see."""
        token = agent.node.token
        return self.phase is RunPhase.RUNNING and token not in self._group.succeeded and self.registry.is_member(token)

    def _free_slots(self) -> int:
        """Return the number of nodes that the group can still take."""
        group = (
            self.registry.generation.nodes if self.registry.generation and self.phase is not RunPhase.FORMING else ()
        )
        return self._policy.max_nodes - len(group) if self._policy else 0
