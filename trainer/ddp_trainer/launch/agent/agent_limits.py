"""Time limits of an agent: :class:`Limits`, which ``ddp-launch`` makes from its flags."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of the agent, in seconds."""

    join: float = 600.0
    """Limit of the wait for a generation, whether the store is reachable or not."""
    shutdown: float = 30.0
    """Time between SIGTERM and SIGKILL if no peer is lost: the workers finish their step and save."""
    failure: float = 3.0
    """Time between SIGTERM and SIGKILL if a peer is dead: the remaining workers are stuck in a collective or about to
    fail. Surviving workers get longer if they may be busy with a longer step.
    """
    prepare: float = 60.0
    """Limit for workers that get ready before they have a generation. After it, they start with their generation."""
