"""Nodes that join a run which looks at its nodes: each holds a preflight with members before it may be taken in.

::

    Join ──▶ DUE ──Meet──▶ UNDER_WAY ──Met──▶ FIT       and from here on it is a newcomer like any other
              ▲                         └───▶ UNFIT     it stays out
              └───────── after a while ──────────┘      firewalls are mended, clocks set

The members train on meanwhile: theirs is a process beside their workers for some seconds. The newcomer hosts, at the
port that it holds for the ranks, since theirs are in use. No socket and no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ddp_trainer.launch.protocol.messages import MOST_MET, Generation, Meet, Met
from ddp_trainer.launch.rendezvous.node_registry import Agent, Fitness, NodeRegistry

MOST_ONLOOKERS: Final = MOST_MET // 2
"""Members that take part, spread over the group: what is wrong with a node is so towards most of the others."""
AT_ONCE: Final = 4
"""Newcomers that are looked at together: each costs its onlookers a process."""
AGAIN_SECONDS: Final = 60.0
"""After which one that was not fit is looked at again."""


class JoinChecks:
    """That of one run."""

    def __init__(self) -> None:
        self._number = 0
        self._under_way: dict[str, tuple[int, frozenset[str]]] = {}
        """Newcomer's token → number of its preflight, and the tokens of its onlookers."""
        self._again_at: dict[str, float] = {}
        self._watched: dict[str, None] = {}
        """Tokens of those that may be out, in the order in which they joined."""

    def holds_up(self, agent: Agent, roster: NodeRegistry) -> bool:
        """Whether a node that has joined must be looked at before anything else happens to it."""
        if agent.fitness is Fitness.UNKNOWN and not roster.is_member(agent.node.token) and _onlookers(agent, roster):
            agent.fitness = Fitness.DUE
        if agent.is_out:
            self._watched[agent.node.token] = None
        return agent.is_out

    def review(self, roster: NodeRegistry) -> None:
        """There is another group: those that wait for a place have come before there was anybody to meet."""
        for agent in roster.newcomers():
            if agent.port is not None:
                self.holds_up(agent, roster)

    def begin(self, roster: NodeRegistry, now: float) -> Iterator[tuple[Agent, Meet | None]]:
        """Whom to tell what now; nothing, and it may be taken in, where nobody is left to meet with."""
        found = {token: roster.agents.get(token) for token in self._watched}
        known = {token: agent for token, agent in found.items() if agent and agent.is_out and agent.peer is not None}
        self._watched = dict.fromkeys(known)
        self._under_way = {token: each for token, each in self._under_way.items() if token in known}
        self._again_at = {token: when for token, when in self._again_at.items() if token in known}
        for token, agent in known.items():
            if agent.fitness is Fitness.UNFIT and self._again_at.get(token, now) <= now:
                agent.fitness = Fitness.DUE
                self._again_at.pop(token, None)
            if agent.fitness is Fitness.DUE and agent.port is not None:
                onlookers = _onlookers(agent, roster)
                if not onlookers:
                    agent.fitness = Fitness.FIT
                    yield agent, None
                elif len(self._under_way) < AT_ONCE:
                    yield from self._meet(agent, onlookers)

    def _meet(self, newcomer: Agent, onlookers: list[Agent]) -> Iterator[tuple[Agent, Meet]]:
        self._number += 1
        newcomer.fitness = Fitness.UNDER_WAY
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
            yield agent, Meet(number=self._number, names=names, place=place)

    def met(self, newcomer: Agent, met: Met, roster: NodeRegistry, now: float) -> bool:
        """What came of it, and whether the newcomer may be taken in; a no means little where an onlooker has gone."""
        number, onlookers = self._under_way.get(newcomer.node.token, (0, frozenset()))
        if met.number != number or newcomer.fitness is not Fitness.UNDER_WAY:
            return False
        del self._under_way[newcomer.node.token]
        if met.fit:
            newcomer.fitness = Fitness.FIT
        elif onlookers <= {agent.node.token for agent in roster.members() if agent.peer is not None}:
            newcomer.fitness, self._again_at[newcomer.node.token] = Fitness.UNFIT, now + AGAIN_SECONDS
        else:
            newcomer.fitness = Fitness.DUE
        return met.fit

    def deadline(self) -> float:
        """When :meth:`begin` is due next, if nothing happens before."""
        return min(self._again_at.values(), default=math.inf)


def _onlookers(newcomer: Agent, roster: NodeRegistry) -> list[Agent]:
    """Members that can be asked, in the order of their ranks; nobody where the newcomer does not look itself."""
    if not newcomer.looks or roster.generation is None:
        return []
    members = [roster.agents[node.token] for node in roster.generation.nodes if node.token in roster.agents]
    able = [agent for agent in members if agent.looks and agent.peer is not None and not agent.leaving]
    return able[:: math.ceil(len(able) / MOST_ONLOOKERS)] if able else []
