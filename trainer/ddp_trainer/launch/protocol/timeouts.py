"""Timeouts of the connection between an agent and the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatTimeouts:
    """Heartbeat that detects a cut network, which closes no connection. In seconds."""

    interval: float = 1.0
    timeout: float = 4.0
    """Longest silence of the other side. The others step again within 5 s after the last message of a lost node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Times for which the store waits before it decides. In seconds."""

    reconnect: float = 0.1
    """Time for which an agent whose connection closed may reconnect before it counts as lost.

    The connection may be back soon, and the agent retries without delay. The group does not wait longer for a lost
    node. An agent that connects later joins like a new one.
    """
    adopt: float = 10.0
    """Wait after a restart of the store for the other members of a generation that one agent has reported."""
    ended: float = 3.0
    """The same wait where the reporting agent has seen its group end.

    The other agents have also seen the end, and look for the store every second.
    """
    first: float = 3.0
    """Wait after a start without state, before a group below ``max_nodes`` forms. A running group may be about to
    reconnect."""


HEARTBEAT: Final = HeartbeatTimeouts()
TIMEOUTS: Final = Timeouts()
