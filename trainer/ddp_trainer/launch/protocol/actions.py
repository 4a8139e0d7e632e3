"""Actions that an agent executes for its state machine.

:class:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine` returns them as plain data, and the agent executes
them. :data:`Action` is the union of all actions.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from ddp_trainer.common.constants import GroupState
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.protocol.messages import Failure, FromAgent


class Timer(StrEnum):
    """Timers of an agent."""

    KILL = "kill"
    """Limit for workers that have received a signal to stop."""
    JOIN = "join"
    """Limit for the wait for a place in a generation."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the store, if the connection is up."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start the workers of a generation."""

    generation: Assignment


@dataclass(frozen=True, slots=True)
class PrepareWorkers:
    """Start workers that wait for their first generation."""


@dataclass(frozen=True, slots=True)
class StartForkServer:
    """Start the fork server of a spare, so that its workers start without imports when it takes a place."""


@dataclass(frozen=True, slots=True)
class RegroupWorkers:
    """Make the workers of these local ranks leave their group and keep their processes."""

    local_ranks: frozenset[int]
    graceful: bool


@dataclass(frozen=True, slots=True)
class SignalWorkers:
    """Send a signal to the running workers."""

    signal: signal.Signals
    local_ranks: frozenset[int] | None = None
    """Local ranks that receive the signal; all when None."""


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Set a timer to fire after ``seconds``. This replaces its previous time."""

    timer: Timer
    seconds: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    """Cancel a timer."""

    timer: Timer


@dataclass(frozen=True, slots=True)
class Enter:
    """Record the new state of the worker group."""

    state: GroupState


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Reserve a new port, then call :meth:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine.join` with it."""


@dataclass(frozen=True, slots=True)
class ProbeGpus:
    """Probe the GPUs of local ranks that have no worker, and with ``--preflight`` check the health of all.

    The result goes to :meth:`~ddp_trainer.launch.agent.agent_state.AgentStateMachine.on_probe_result`.
    """


@dataclass(frozen=True, slots=True)
class Finish:
    """End the agent with an exit code. This is its last action."""

    code: int
    message: str = ""
    failure: Failure | None = None
    restarts: dict[str, int] | None = None
    summary: str = ""


Action = (
    Send
    | StartWorkers
    | PrepareWorkers
    | StartForkServer
    | RegroupWorkers
    | SignalWorkers
    | SetTimer
    | CancelTimer
    | Enter
    | Rejoin
    | ProbeGpus
    | Finish
)
