"""What a run came to, in one small record: the end of its log, and its pod's termination message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ddp_trainer.train.evaluation.early_stopping import Best
from ddp_trainer.train.utils.durable_files import write_durably


class Result(StrEnum):
    """How this process's part of the run ended."""

    SUCCEEDED = "succeeded"
    """All planned steps were done."""
    STOPPED = "stopped"
    """Told to stop; the run can go on from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One run, restarts included."""

    result: Result
    task: str
    steps: int
    """Committed global steps."""
    epochs: float
    """Epochs those make."""
    accuracy: float | None
    """On the test samples; None where the task has no metric of this name."""
    loss: float | None
    """On the test samples, else of the last step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics on the test samples."""
    best: Best | None = None
    """Metric, value and step of the best evaluation; None where nothing was evaluated."""
    stopped_early: bool = False
    """The run ended before its planned steps, since evaluations no longer became better."""
    samples_lost: int
    """Samples that a finished epoch never saw."""
    samples_repeated: int
    """Samples that an epoch saw more than once."""
    samples_skipped: int = 0
    """Samples that could not be read, and counted with weight 0; once per epoch."""
    lost_steps: int
    """Steps that were done, lost with a crash or a rollback, and done again."""
    skipped_steps: int = 0
    """Steps that consumed their samples without moving the weights: their loss or gradient was not finite."""
    rollbacks: int = 0
    """Times that a guard sent the run back to its last checkpoint."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """By cause, as the launcher counted them."""
    goodput: float
    """Productive time of steps that survived, over the time since the run first started in which it was not suspended;
    see :mod:`ddp_trainer.train.config.goodput_account`."""
    lost_seconds: float = 0.0
    """Productive time of the steps that were lost."""
    largest_badput: str = ""
    """What cost most of the rest: a state of the account, or ``lost_progress``."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the run first started by what they went into; states that took no time are left out."""
    seconds: float
    """Time since the run first started."""
    world_size: int
    """Ranks at the end."""
    global_batch: int
    shards: int
    seed: int
    generation: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, that any reader can load."""
        return {**asdict(self), "result": str(self.result)}

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Summary:
        """The inverse of :meth:`to_dict`."""
        return cls(**{**values, "result": Result(values["result"])})

    def write(self, file: Path) -> None:
        """Leave it in a file.

        Raises:
            OSError: it could not be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, (self.to_json() + "\n").encode())
