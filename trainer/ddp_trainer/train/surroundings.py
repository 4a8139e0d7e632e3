"""What a run is given besides its flags and its task: its place in the world, and who hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_trainer.recorder import RankRecorder
from ddp_trainer.train.environment import Environment
from ddp_trainer.train.group import Group
from ddp_trainer.train.progress import Progress
from ddp_trainer.train.stop import StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run is given besides its flags."""

    env: Environment
    group: Group
    recorder: RankRecorder
    progress: Progress
    stop: StopRequest
    began: float
    """When this process began, in seconds since the Unix epoch; imports count as lost time."""
