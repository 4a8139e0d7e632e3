"""Notices to nodes that wait for a group, with the ready and the missing nodes.

:class:`WaitingNotifier` produces them for the store's state machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ddp_trainer.launch.protocol.message_fields import MOST_NAMED
from ddp_trainer.launch.protocol.messages import Policy, Waiting
from ddp_trainer.launch.rendezvous.node_registry import Agent, NodeRegistry
from ddp_trainer.launch.rendezvous.ranks import absent, in_order

MOST_TOLD: Final = 64
"""Number of waiting nodes up to which each receives a notice when another one joins.

Above it, only the node that joins receives one, because the notices would grow with the square of the nodes.
"""


class WaitingNotifier:
    """Source of notices, which it produces when the set of ready nodes changes."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()
        self._arrived: list[Agent] = []
        """Agents that have just joined. They get a reply once it is clear whether they are in a group."""

    def record_arrival(self, agent: Agent) -> None:
        """Record that an agent has joined."""
        self._arrived.append(agent)

    def notices(
        self, roster: NodeRegistry, policy: Policy | None, room: int, *, is_forming: bool
    ) -> Iterator[tuple[Agent, Waiting]]:
        """Yield each agent that has just joined with its reply, or each waiting agent with its notice.

        Args:
            roster: Agents of the run.
            policy: Settings of the run; None before the first agent.
            room: Number of nodes that the group can still take.
            is_forming: A group is wanted.
        """
        arrived, self._arrived = self._arrived, []
        waiting = [agent for agent in arrived if agent.is_ready and not roster.is_member(agent.node.token)]
        is_short = is_forming and len(roster.ready()) < (policy.min_nodes if policy else 1)
        if waiting and not is_short:
            told = Waiting(nodes=len(roster.ready()), spare=room <= 0)
            yield from ((agent, told) for agent in waiting)
        yield from self.notifications(roster.ready() if is_short else {}, policy)

    def notifications(self, ready: Mapping[str, Agent], policy: Policy | None) -> Iterator[tuple[Agent, Waiting]]:
        """Yield each agent with its notice.

        Args:
            ready: Agents that wait for a group, by token.
            policy: Settings of the run; None before the first agent.
        """
        if ready.keys() == self._told:
            return
        before, self._told = self._told, frozenset(ready)
        few = len(ready) <= MOST_TOLD
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
