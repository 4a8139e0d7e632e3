"""Preflights of nodes that join a running group. Each holds one with some members before the group accepts it.

::

    Join ──▶ DUE ──RunPreflight──▶ UNDER_WAY ──PreflightResult──▶ FIT       then a newcomer like any other
              ▲                                             └───▶ UNFIT     not accepted
              └────────────────────── after a while ─────────────────┘      firewalls or clocks may be fixed by then

:class:`JoinChecks` decides for the store when a preflight starts, and processes its result. It uses neither sockets nor
a clock. The members continue to train. Their part is a process beside their workers for some seconds. The newcomer
hosts the preflight at the port that it holds for its ranks, because the ports of the members are in use.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ddp_trainer.launch.protocol.generation import Generation
from ddp_trainer.launch.protocol.message_fields import MOST_MET
from ddp_trainer.launch.protocol.messages import PreflightResult, RunPreflight
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry, PreflightState

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
        self._watched: dict[str, None] = {}
        """Tokens of nodes that may be waiting for a preflight, in the order in which they joined."""

    def holds_up(self, agent: Agent, roster: NodeRegistry) -> bool:
        """Return whether a node that has joined must wait, and mark its preflight as due if it needs one."""
        if (
            agent.fitness is PreflightState.UNKNOWN
            and not roster.is_member(agent.node.token)
            and _preflight_peers(agent, roster)
        ):
            agent.fitness = PreflightState.DUE
        if agent.is_out:
            self._watched[agent.node.token] = None
        return agent.is_out

    def review(self, roster: NodeRegistry) -> None:
        """Check the newcomers again after a group has formed. Before, there may have been no member to meet."""
        for agent in roster.joining_agents():
            if agent.port is not None:
                self.holds_up(agent, roster)

    def begin(self, roster: NodeRegistry, now: float) -> Iterator[tuple[Agent, RunPreflight | None]]:
        """Yield agents with their :class:`RunPreflight`, for the preflights that start now.

        An agent with None needs no preflight, because no member can take part. The group may accept it.
        """
        found = {token: roster.agents.get(token) for token in self._watched}
        known = {token: agent for token, agent in found.items() if agent and agent.is_out and agent.peer is not None}
        self._watched = dict.fromkeys(known)
        self._under_way = {token: each for token, each in self._under_way.items() if token in known}
        self._again_at = {token: when for token, when in self._again_at.items() if token in known}
        for token, agent in known.items():
            if agent.fitness is PreflightState.UNFIT and self._again_at.get(token, now) <= now:
                agent.fitness = PreflightState.DUE
                self._again_at.pop(token, None)
            if agent.fitness is PreflightState.DUE and agent.port is not None:
                onlookers = _preflight_peers(agent, roster)
                if not onlookers:
                    agent.fitness = PreflightState.FIT
                    yield agent, None
                elif len(self._under_way) < AT_ONCE:
                    yield from self._start_preflight(agent, onlookers)

    def _start_preflight(self, newcomer: Agent, onlookers: list[Agent]) -> Iterator[tuple[Agent, RunPreflight]]:
        self._number += 1
        newcomer.fitness = PreflightState.UNDER_WAY
        self._under_way[newcomer.node.token] = (self._number, frozenset(each.node.token for each in onlookers))
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

    def record_result(self, newcomer: Agent, met: PreflightResult, roster: NodeRegistry, now: float) -> bool:
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
        elif onlookers <= {agent.node.token for agent in roster.members() if agent.peer is not None}:
            newcomer.fitness, self._again_at[newcomer.node.token] = PreflightState.UNFIT, now + AGAIN_SECONDS
        else:
            newcomer.fitness = PreflightState.DUE
        return met.fit

    def deadline(self) -> float:
        """Return the time at which :meth:`begin` is due next; infinity for never."""
        return min(self._again_at.values(), default=math.inf)


def _preflight_peers(newcomer: Agent, roster: NodeRegistry) -> list[Agent]:
    """Return members that can take part, in the order of ranks; none if the newcomer holds no preflights."""
    if not newcomer.looks or roster.generation is None:
        return []
    members = [roster.agents[node.token] for node in roster.generation.nodes if node.token in roster.agents]
    able = [agent for agent in members if agent.looks and agent.peer is not None and not agent.leaving]
    return able[:: math.ceil(len(able) / MOST_ONLOOKERS)] if able else []
