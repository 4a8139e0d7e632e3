"""What a run is given besides its flags and its task: its place in the world, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.observability.console import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """What a run is given besides its flags."""

    env: Environment
    group: Group
    recorder: RankRecorder
    progress: Progress
    stop: StopRequest
    began: float
    """When this process began, in seconds since the Unix epoch; imports count as lost time."""
    control: Control | None = None
    """The channel to the launcher; None where there is none."""

    @property
    def is_asked_to_leave(self) -> bool:
        """This process is to leave the group after the step under way, for good or for another one."""
        return self.stop.requested or (self.control is not None and self.control.asked)

    def begin_training(self) -> None:
        """From here on whoever asks waits for the end of the step."""
        self.stop.training_begins()
        if self.control is not None:
            self.control.training_begins()
