"""Since when nodes wait for a place: a group below the most is formed when nobody has come for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddp_trainer.launch.protocol.messages import Policy
from ddp_trainer.launch.rendezvous.node_registry import NodeRegistry


@dataclass(slots=True)
class JoinWindow:
    """When the first and the last of them came, by the store's clock."""

    first_at: float = math.inf
    last_at: float = -math.inf

    def came(self, now: float) -> None:
        """One more."""
        self.last_at = now
        self.first_at = min(self.first_at, now)

    def begin(self, now: float) -> None:
        """A group has ended: whoever comes is waited for from here on."""
        self.first_at = self.last_at = now

    def form_at(self, roster: NodeRegistry, policy: Policy | None, not_before: float) -> float:
        """When those that are ready become a group; the first one below the most at ``not_before``."""
        ready = roster.ready()
        if policy is None or len(ready) < policy.min_nodes:
            return math.inf
        if len(ready) >= policy.max_nodes:
            return -math.inf
        if roster.generation is None:
            return max(self.settled_at(policy), not_before)
        # Those that are left go on at once: whoever is still to come has no date, and joins when it is there.
        return -math.inf if any(map(roster.is_member, ready)) else self.settled_at(policy)

    def grow_at(self, roster: NodeRegistry, policy: Policy | None, room: int) -> float:
        """When a group that runs, and has room for so many more, is stopped for them; never for a spare."""
        ready = len(roster.ready())
        has_absent = any(agent.peer is None for agent in roster.members())
        if not ready or room <= 0 or has_absent:
            return math.inf
        all_are_here = all(agent.is_prepared for agent in roster.newcomers())
        return -math.inf if ready >= room or all_are_here else self.settled_at(policy)

    def settled_at(self, policy: Policy | None) -> float:
        """When they are waited for no longer: nobody came for a while, or the last call is over."""
        if policy is None:
            return math.inf
        return min(self.last_at + policy.settle_seconds, self.first_at + policy.last_call_seconds)
