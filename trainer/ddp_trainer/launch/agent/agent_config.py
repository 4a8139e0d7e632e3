"""What an agent is given: what it runs, by which rules, and where it reports to."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_trainer.launch.agent.agent_state import AgentStateMachine, Limits
from ddp_trainer.launch.agent.preflight_policy import PreflightPolicy
from ddp_trainer.launch.agent.termination_report import Report
from ddp_trainer.launch.host.environment import Launch
from ddp_trainer.launch.rendezvous.hang_limits import HangPolicy
from ddp_trainer.launch.workers.logs import LogSpec
from ddp_trainer.launch.workers.worker_group import Program
from ddp_trainer.process.recorder import AgentRecorder


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Everything an agent is given."""

    core: AgentStateMachine
    program: Program
    launch: Launch
    logs: LogSpec
    log_dir: Path
    report: Report
    recorder: AgentRecorder
    signals: Sequence[signal.Signals]
    min_nodes: int
    max_nodes: int
    endpoint: str
    """Of the store, for a sentence."""
    limits: Limits
    environment: Mapping[str, str]
    """Of this launcher."""
    preload: Sequence[str] | None
    """What the zygote imports besides torch; no zygote when None."""
    zygote_delay: float
    """Seconds after a start of workers at which it is started."""
    care: PreflightPolicy
    """Whether the nodes are looked at before the first workers."""
    hangs: HangPolicy
    pulse_dir: Path
    prepares: bool = False
    """Workers get ready before there is a generation for them."""
