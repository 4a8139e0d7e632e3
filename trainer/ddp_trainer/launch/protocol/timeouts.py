"""How long either side waits for the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """How a cut network, which closes no connection, is noticed; seconds."""

    interval: float = 1.0
    timeout: float = 5.0
    """So long the other side may be silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the store waits for what may still come; seconds."""

    reconnect: float = 0.1
    """A closed connection may be a blip: so long its agent, which tries at once, may come back before it counts as
    lost. A lost node is waited for no longer than that, and an agent that comes later joins like a new one."""
    adopt: float = 10.0
    """After a restart of the store: for the other members of a generation that one agent told of."""
    ended: float = 3.0
    """The same where that agent has seen the group end: the others have, too, and look for the store every second."""
    first: float = 3.0
    """After a start with empty memory, before a group below ``max_nodes``: a running one may be about to reconnect."""


HEARTBEAT: Final = Heartbeat()
PATIENCE: Final = Patience()
