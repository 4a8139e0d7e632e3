"""Formation of a worker group: when, from which nodes, and in which order of ranks.

:class:`JoinWindow` returns the times at which a group forms or grows: below ``max_nodes``, after a time without a new
node. :func:`form_group` chooses the nodes and makes the generation. Ranks follow the index of the pod; torch's own
rendezvous sorts by address, so worker-10 comes before worker-2, which undoes the work of a scheduler that placed
neighbours side by side. :class:`WaitingNotifier` sends the ready and the missing nodes to those that wait.

:class:`JoinChecks` holds a preflight of a node that joins a running group with some members, before the group accepts
it::

    Join ──▶ DUE ──RunPreflight──▶ UNDER_WAY ──PreflightResult──▶ FIT       then a newcomer like any other
              ▲                                             └───▶ UNFIT     not accepted
              └────────────────────── after a while ─────────────────┘      firewalls or clocks may be fixed by then

The members continue to train. Their part is a process beside their workers for some seconds. The newcomer hosts the
preflight at the port that it holds for its ranks, because the ports of the members are in use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.launch.failures import Budget
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.protocol.message_fields import MOST_MET, MOST_NAMED
from ddp_trainer.launch.protocol.messages import Policy, PreflightResult, RunPreflight, Start, Waiting
from ddp_trainer.launch.rendezvous.node_registry import NodeRegistry, PreflightState, RegisteredAgent, median_time_ms


@dataclass(slots=True)
class JoinWindow:
    """Arrival times of the first and the last waiting node, by the store's clock in seconds."""

    first_at: float = math.inf
    last_at: float = -math.inf

    def record_arrival(self, now: float) -> None:
        """Record the arrival of a node."""
        self.last_at = now
        self.first_at = min(self.first_at, now)

    def form_at(
        self, ready: Mapping[str, RegisteredAgent], registry: NodeRegistry, policy: Policy, not_before: float
    ) -> float:
        """Return the time at which the ready nodes form a group; infinity for never, minus infinity for now.

        Args:
            ready: Agents that the group can form from, by token.
            registry: Agents of the run.
            policy: Settings of the run.
            not_before: Earliest time for the first group, if it has less than ``max_nodes``.
        """
        if len(ready) < policy.min_nodes:
            return math.inf
        if len(ready) >= policy.max_nodes:
            return -math.inf
        if registry.generation is None:
            return max(self.closes_at(policy), not_before)
        # Surviving nodes do not wait, because the arrival of others is unknown. Later nodes join the running group.
        return -math.inf if any(map(registry.is_member, ready)) else self.closes_at(policy)

    def scale_up_at(self, registry: NodeRegistry, policy: Policy | None, room: int) -> float:
        """Return the time at which a running group stops for new nodes; infinity for never, minus infinity for now.

        Args:
            registry: Agents of the run.
            policy: Settings of the run; None before the first agent.
            room: Number of nodes that the group can still take. Without room, new nodes wait as spares.
        """
        ready = sum(not agent.is_importing for agent in registry.ready().values())
        has_absent = any(agent.peer is None for agent in registry.members())
        if policy is None or not ready or room <= 0 or has_absent:
            return math.inf
        all_are_here = all(agent.is_prepared for agent in registry.joining_agents())
        return -math.inf if ready >= room or all_are_here else self.closes_at(policy)

    def closes_at(self, policy: Policy) -> float:
        """Return the end of the wait, by the store's clock in seconds.

        It is ``settle_seconds`` after the last arrival, but at most ``last_call_seconds`` after the first.
        """
        return min(self.last_at + policy.settle_seconds, self.first_at + policy.last_call_seconds)


def form_group(
    ready: Mapping[str, RegisteredAgent],
    registry: NodeRegistry,
    policy: Policy,
    budget: Budget,
    *,
    number: int,
    now: float,
) -> tuple[Generation, dict[str, Start]]:
    """Return the next generation, and the message to each of its nodes by token.

    Args:
        ready: Agents that can be in the group, by token.
        registry: Agents of the run, with its newest generation.
        policy: Settings of the run.
        budget: Restarts of the run.
        number: Number of the generation.
        now: Time of the store's monotonic clock, in seconds.
    """
    veterans = {node.token for node in registry.generation.nodes} if registry.generation else set()
    nodes = tuple(choose([agent.node for agent in ready.values()], veterans, policy.max_nodes))
    generation = Generation(
        number=number,
        fence=max(registry.fence + 1, int(median_time_ms([ready[node.token] for node in nodes], now))),
        nodes=nodes,
        master_address=nodes[0].address,
        master_port=ready[nodes[0].token].port or 0,
        restarts=dict(budget.restarts),
        restarts_left=budget.left(policy),
    )
    starts = {node.token: Start(assignment=assignment) for node, assignment in generation.assignments()}
    return generation, starts


def start_messages(
    ready: Mapping[str, RegisteredAgent], starts: Mapping[str, Start]
) -> list[tuple[RegisteredAgent, Start | Waiting]]:
    """Give each node of a group its place, and return each ready agent with its message.

    Args:
        ready: Agents that could be in the group, by token.
        starts: Messages to the nodes of the group. The other agents wait as spares.
    """
    outgoing: list[tuple[RegisteredAgent, Start | Waiting]] = []
    for token, agent in ready.items():
        if start := starts.get(token):
            agent.port, agent.fitness = None, PreflightState.FIT
            agent.first_rank = start.assignment.first_rank
            outgoing.append((agent, start))
        else:
            outgoing.append((agent, Waiting(nodes=len(starts), spare=True)))
    return outgoing


def in_order(nodes: Iterable[Node]) -> list[Node]:
    """Sort nodes by index. Nodes without one come last, in the natural order of their names (node2 before node10)."""
    return sorted(nodes, key=lambda node: (node.index is None, node.index or 0, _natural(node.name), node.token))


def absent(nodes: Collection[Node], least: int) -> tuple[str, ...]:
    """Return the names of the missing nodes among the first ``least``; empty if a ready node has no index.

    >>> absent([Node(token="a", name="worker-1", index=1, local_world_size=1)], 3)
    ('worker-0', 'worker-2')
    """
    indices = {node.index for node in nodes}
    if None in indices or not nodes:
        return ()
    stems = {node.name.removesuffix(str(node.index)) for node in nodes if node.name.endswith(f"-{node.index}")}
    stem = stems.pop() if len(stems) == 1 else "node "
    return tuple(f"{stem}{index}" for index in range(least) if index not in indices)


def choose(candidates: Collection[Node], veterans: Collection[str], limit: int) -> list[Node]:
    """Return at most ``limit`` candidates in the order of ranks: members of the last group first, then the lowest.

    Args:
        candidates: Nodes to choose from.
        veterans: Tokens of the members of the last group.
        limit: Largest number of nodes.
    """
    ranked = in_order(candidates)
    return in_order(sorted(ranked, key=lambda node: node.token not in veterans)[:limit])


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part)


MAX_NOTIFIED_NODES: Final = 64
"""Number of waiting nodes up to which each receives a notice when another one joins.

Above it, only the node that joins receives one, because the notices would grow with the square of the nodes.
"""


class WaitingNotifier:
    """Source of notices, which it produces when the set of ready nodes changes."""

    def __init__(self) -> None:
        self.notified: frozenset[str] = frozenset()
        """Tokens of the ready agents at the last notices. Read only."""
        self.arrived: list[RegisteredAgent] = []
        """Agents that have just joined. They get a reply once it is clear whether they are in a group. Read only."""

    def record_arrival(self, agent: RegisteredAgent) -> None:
        """Record that an agent has joined."""
        self.arrived.append(agent)

    def notices(
        self, registry: NodeRegistry, policy: Policy | None, room: int, *, is_forming: bool
    ) -> Iterator[tuple[RegisteredAgent, Waiting]]:
        """Yield each agent that has just joined with its reply, or each waiting agent with its notice.

        Args:
            registry: Agents of the run.
            policy: Settings of the run; None before the first agent.
            room: Number of nodes that the group can still take.
            is_forming: A group is wanted.
        """
        arrived, self.arrived = self.arrived, []
        waiting = [agent for agent in arrived if agent.is_ready and not registry.is_member(agent.node.token)]
        is_short = is_forming and len(registry.ready()) < (policy.min_nodes if policy else 1)
        if waiting and not is_short:
            notice = Waiting(nodes=len(registry.ready()), spare=room <= 0)
            yield from ((agent, notice) for agent in waiting)
        yield from self.notifications(registry.ready() if is_short else {}, policy)

    def notifications(
        self, ready: Mapping[str, RegisteredAgent], policy: Policy | None
    ) -> Iterator[tuple[RegisteredAgent, Waiting]]:
        """Yield each agent with its notice.

        Args:
            ready: Agents that wait for a group, by token.
            policy: Settings of the run; None before the first agent.
        """
        if ready.keys() == self.notified:
            return
        before, self.notified = self.notified, frozenset(ready)
        few = len(ready) <= MAX_NOTIFIED_NODES
        nodes = [agent.node for agent in ready.values()]
        names = [node.name for node in in_order(nodes)] if few else []
        missing = absent(nodes, policy.min_nodes) if policy and few else ()
        waiting = Waiting(
            nodes=len(ready),
            spare=False,
            names=tuple(names[:MOST_NAMED]),
            missing=missing[:MOST_NAMED],
            missing_count=len(missing),
        )
        for token, agent in ready.items():
            if few or token not in before:
                yield agent, waiting


MOST_ONLOOKERS: Final = MOST_MET // 2
"""Most members that take part, spread over the group. A fault of a node affects its connections to most members."""
AT_ONCE: Final = 4
"""Most preflights at the same time. Each costs its members a process."""
AGAIN_SECONDS: Final = 60.0
"""Pause before an unfit node gets another preflight."""


class JoinChecks:
    """Preflights of the joining nodes of one run."""

    def __init__(self) -> None:
        self._number = 0
        self._under_way: dict[str, tuple[int, frozenset[str]]] = {}
        """Newcomer's token → number of its preflight, and the tokens of the members that take part."""
        self._again_at: dict[str, float] = {}
        self.watched: dict[str, None] = {}
        """Tokens of nodes that may be waiting for a preflight, in the order in which they joined. Read only."""

    def holds_up(self, agent: RegisteredAgent, registry: NodeRegistry) -> bool:
        """Return whether a node that has joined must wait, and mark its preflight as due if it needs one."""
        if (
            agent.fitness is PreflightState.UNKNOWN
            and not registry.is_member(agent.node.token)
            and _preflight_peers(agent, registry)
        ):
            agent.fitness = PreflightState.DUE
        if agent.is_out:
            self.watched[agent.node.token] = None
        return agent.is_out

    def review(self, registry: NodeRegistry) -> None:
        """Check the newcomers again after a group has formed. Before that, there may be no member to connect to."""
        for agent in registry.joining_agents():
            if agent.port is not None:
                self.holds_up(agent, registry)

    def begin(self, registry: NodeRegistry, now: float) -> Iterator[tuple[RegisteredAgent, RunPreflight | None]]:
        """Yield agents with their :class:`RunPreflight`, for the preflights that start now.

        An agent with None needs no preflight, because no member can take part. The group may accept it.
        """
        found = {token: registry.agents.get(token) for token in self.watched}
        known = {token: agent for token, agent in found.items() if agent and agent.is_out and agent.peer is not None}
        self.watched = dict.fromkeys(known)
        self._under_way = {token: check for token, check in self._under_way.items() if token in known}
        self._again_at = {token: when for token, when in self._again_at.items() if token in known}
        for token, agent in known.items():
            if agent.fitness is PreflightState.UNFIT and self._again_at.get(token, now) <= now:
                agent.fitness = PreflightState.DUE
                self._again_at.pop(token, None)
            if agent.fitness is PreflightState.DUE and agent.port is not None:
                onlookers = _preflight_peers(agent, registry)
                if not onlookers:
                    agent.fitness = PreflightState.FIT
                    yield agent, None
                elif len(self._under_way) < AT_ONCE:
                    yield from self._start_preflight(agent, onlookers)

    def _start_preflight(
        self, newcomer: RegisteredAgent, onlookers: list[RegisteredAgent]
    ) -> Iterator[tuple[RegisteredAgent, RunPreflight]]:
        self._number += 1
        newcomer.fitness = PreflightState.UNDER_WAY
        self._under_way[newcomer.node.token] = (self._number, frozenset(onlooker.node.token for onlooker in onlookers))
        everybody = [*onlookers, newcomer]
        group = Generation(
            number=0,
            fence=0,
            nodes=tuple(agent.node for agent in everybody),
            master_address=newcomer.node.address,
            master_port=newcomer.port or 0,
        )
        names = tuple(agent.node.name for agent in everybody)
        for agent, (_, place) in zip(everybody, group.assignments(), strict=True):
            yield agent, RunPreflight(number=self._number, names=names, place=place)

    def record_result(
        self, newcomer: RegisteredAgent, met: PreflightResult, registry: NodeRegistry, now: float
    ) -> bool:
        """Record the result of a preflight, and return whether the group may accept the newcomer.

        A negative result counts only if all participating members are still connected. Otherwise the preflight is
        repeated.
        """
        number, onlookers = self._under_way.get(newcomer.node.token, (0, frozenset()))
        if met.number != number or newcomer.fitness is not PreflightState.UNDER_WAY:
            return False
        del self._under_way[newcomer.node.token]
        if met.fit:
            newcomer.fitness = PreflightState.FIT
        elif onlookers <= {agent.node.token for agent in registry.members() if agent.peer is not None}:
            newcomer.fitness, self._again_at[newcomer.node.token] = PreflightState.UNFIT, now + AGAIN_SECONDS
        else:
            newcomer.fitness = PreflightState.DUE
        return met.fit

    def deadline(self) -> float:
        """Return the time at which :meth:`begin` is due next; infinity for never."""
        return min(self._again_at.values(), default=math.inf)


def _preflight_peers(newcomer: RegisteredAgent, registry: NodeRegistry) -> list[RegisteredAgent]:
    """Return members that can take part, in the order of ranks; none if the newcomer holds no preflights."""
    if not newcomer.joins_preflight or registry.generation is None:
        return []
    members = [registry.agents[node.token] for node in registry.generation.nodes if node.token in registry.agents]
    able = [agent for agent in members if agent.joins_preflight and agent.peer is not None and not agent.leaving]
    return able[:: math.ceil(len(able) / MOST_ONLOOKERS)] if able else []
