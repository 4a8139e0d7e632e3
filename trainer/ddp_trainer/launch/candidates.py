"""Since when nodes wait for a place: a group below the most is formed when nobody has come for a while."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddp_trainer.launch.protocol import Policy


@dataclass(slots=True)
class Candidates:
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

    def settled_at(self, policy: Policy | None) -> float:
        """When they are waited for no longer: nobody came for a while, or the last call is over."""
        if policy is None:
            return math.inf
        return min(self.last_at + policy.settle_seconds, self.first_at + policy.last_call_seconds)
