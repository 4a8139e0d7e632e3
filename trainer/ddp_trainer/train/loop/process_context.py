"""Context of a training process in its worker group.

:class:`ProcessContext` holds the environment, the group, the outputs and the channel to the launcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from ddp_trainer.process.recorder import NoopRankRecorder, RankRecorder
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.observability.console import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """What a run depends on besides its flags and its task: environment, group, outputs and stop requests."""

    env: Environment
    group: Group
    recorder: RankRecorder
    progress: Progress
    stop: StopRequest
    began: float
    """Start of this process, in seconds since the Unix epoch; imports count as lost time."""
    control: Control | None = None
    """The channel to the launcher; None without a launcher."""

    @classmethod
    def outside_groups(
        cls, env: Environment, progress: Progress, stop: StopRequest, began: float, control: Control | None
    ) -> Self:
        """Return the context of a process that has not joined a group.

        Args:
            env: Environment of the process.
            progress: Console output.
            stop: Stop requests to the process.
            began: Start of the process, in seconds since the Unix epoch.
            control: Channel to the launcher; None without a launcher.
        """
        recorder, group = NoopRankRecorder(), Group.single_rank()
        return cls(env=env, group=group, recorder=recorder, progress=progress, stop=stop, began=began, control=control)

    def begin_training(self) -> None:
        """Mark the start of training: from now on stop and regroup requests wait for the end of the step."""
        self.stop.begin_training()
        if self.control is not None:
            self.control.begin_training()
