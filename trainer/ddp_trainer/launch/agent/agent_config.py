"""Configuration of an agent: :class:`AgentConfig`, which ``ddp-launch`` builds from its flags and environment."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.launch.agent.agent_state import AgentStateMachine
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy
from ddp_trainer.launch.agent.previous_launcher import PreviousLauncher
from ddp_trainer.launch.agent.termination_report import TerminationReport
from ddp_trainer.launch.host.environment import Launch
from ddp_trainer.launch.rendezvous.hang_limits import HangPolicy
from ddp_trainer.launch.workers.logs import LogSpec
from ddp_trainer.launch.workers.worker_group import Program
from ddp_trainer.process.recorder import AgentRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Configuration of one agent."""

    core: AgentStateMachine
    program: Program
    launch: Launch
    logs: LogSpec
    log_dir: Path
    report: TerminationReport
    recorder: AgentRecorder
    signals: Sequence[signal.Signals]
    environment: Mapping[str, str]
    """Environment of this launcher."""
    preload: Sequence[str] | None
    """Modules that the fork server imports besides torch; None for no fork server."""
    fork_server_delay: float
    """Seconds from the start of workers to the start of the fork server."""
    care: PreflightPolicy
    """Effect of a preflight on the start of the first workers."""
    hangs: HangPolicy
    heartbeat_dir: Path
    previous_launcher: PreviousLauncher
    """Launcher that ran before in this pod."""
    fixed_port: int = 0
    """Port that rank 0 is to use in every generation; 0 for a new one in each."""
    prepares: bool = False
    """True if workers get ready before there is a generation for them."""
