"""What an agent can be told to do by its :class:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine`: plain
data.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from ddp_trainer.common.constants import GroupState
from ddp_trainer.launch.protocol.messages import Assignment, Failure, FromAgent


class Timer(StrEnum):
    """What the agent waits for at most so long."""

    KILL = "kill"
    """Workers that were asked to stop."""
    JOIN = "join"
    """A place in a generation."""


@dataclass(frozen=True, slots=True)
class Send:
    """Say it to the store, if the link is up."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the workers of a generation."""

    generation: Assignment


@dataclass(frozen=True, slots=True)
class PrepareWorkers:
    """Start workers that wait for their first generation."""


@dataclass(frozen=True, slots=True)
class RegroupWorkers:
    """Have these local ranks leave their group, and stay."""

    local_ranks: frozenset[int]
    graceful: bool


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send a signal to the workers that live."""

    signal: signal.Signals
    local_ranks: frozenset[int] | None = None
    """These of them; all when None."""


@dataclass(frozen=True, slots=True)
class Arm:
    """Fire the timer after so many seconds, instead of when it was to fire before."""

    timer: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class Disarm:
    """The timer is not to fire."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Enter:
    """The worker group is in another state now."""

    state: GroupState


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Hold a new port and :meth:`Core.join` with it."""


@dataclass(frozen=True, slots=True)
class ProbeGpus:
    """Probe the GPUs of local ranks without a worker, and with ``--preflight`` check the health of all; then
    :meth:`Core.probed` with what is found.
    """


@dataclass(frozen=True, slots=True)
class Finish:
    """The agent's last action."""

    code: int
    sentence: str = ""
    failure: Failure | None = None
    restarts: dict[str, int] | None = None


Action = (
    Send
    | StartWorkers
    | PrepareWorkers
    | RegroupWorkers
    | SignalWorkers
    | Arm
    | Disarm
    | Enter
    | Rejoin
    | ProbeGpus
    | Finish
)
