"""State of the newest worker group as the store sees it: :class:`GroupProgress`, a new one for each group."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddp_trainer.launch.protocol.messages import Failure
from ddp_trainer.launch.rendezvous.hang_decision import HangAnalyzer


@dataclass(slots=True)
class GroupProgress:
    """What the store has learned of a group since it formed."""

    succeeded: set[str] = field(default_factory=set)
    """Tokens of the members whose workers have all exited with 0."""
    first_failure: Failure | None = None
    membership_changed: bool = False
    """The group stops because a node is lost, new or leaving."""
    is_graceful: bool = True
    """All nodes are alive, so the workers can finish their step and save when they stop."""
    hangs: HangAnalyzer = field(default_factory=HangAnalyzer)
