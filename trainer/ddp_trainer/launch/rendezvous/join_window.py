"""Waiting time for more nodes: a group below ``max_nodes`` forms after a time without a new node.

:class:`JoinWindow` returns the times at which the store forms or grows a group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddp_trainer.launch.protocol.messages import Policy
from ddp_trainer.launch.rendezvous.node_registry import NodeRegistry


@dataclass(slots=True)
class JoinWindow:
    """Arrival times of the first and the last waiting node, by the store's clock in seconds."""

    first_at: float = math.inf
    last_at: float = -math.inf

    def record_arrival(self, now: float) -> None:
        """Record the arrival of a node."""
        self.last_at = now
        self.first_at = min(self.first_at, now)

    def begin(self, now: float) -> None:
        """Restart the wait when a group has ended."""
        self.first_at = self.last_at = now

    def form_at(self, roster: NodeRegistry, policy: Policy | None, not_before: float) -> float:
        """Return the time at which the ready nodes form a group; infinity for never, minus infinity for now.

        Args:
            roster: Agents of the run.
            policy: Settings of the run; None before the first agent.
            not_before: Earliest time for the first group, if it has less than ``max_nodes``.
        """
        ready = roster.candidates(policy.min_nodes) if policy else {}
        if policy is None or len(ready) < policy.min_nodes:
            return math.inf
        if len(ready) >= policy.max_nodes:
            return -math.inf
        if roster.generation is None:
            return max(self.closes_at(policy), not_before)
        # Surviving nodes do not wait, because the arrival of others is unknown. Later nodes join the running group.
        return -math.inf if any(map(roster.is_member, ready)) else self.closes_at(policy)

    def scale_up_at(self, roster: NodeRegistry, policy: Policy | None, room: int) -> float:
        """Return the time at which a running group stops for new nodes; infinity for never, minus infinity for now.

        Args:
            roster: Agents of the run.
            policy: Settings of the run; None before the first agent.
            room: Number of nodes that the group can still take. Without room, new nodes wait as spares.
        """
        ready = sum(not agent.is_importing for agent in roster.ready().values())
        has_absent = any(agent.peer is None for agent in roster.members())
        if policy is None or not ready or room <= 0 or has_absent:
            return math.inf
        all_are_here = all(agent.is_prepared for agent in roster.joining_agents())
        return -math.inf if ready >= room or all_are_here else self.closes_at(policy)

    def closes_at(self, policy: Policy) -> float:
        """Return the end of the wait, by the store's clock in seconds.

        It is ``settle_seconds`` after the last arrival, but at most ``last_call_seconds`` after the first.
        """
        return min(self.last_at + policy.settle_seconds, self.first_at + policy.last_call_seconds)
