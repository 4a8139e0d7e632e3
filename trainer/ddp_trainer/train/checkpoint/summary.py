"""Result of a run in one JSON record, :class:`Summary`.

It is the last line of the log and the termination message of the pod.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ddp_trainer.process.atomic_files import atomic_write
from ddp_trainer.train.evaluation.early_stopping import Best
from ddp_trainer.train.utils.errors import CheckpointNotWritten


class Result(StrEnum):
    """Outcome of this process's part of the run."""

    SUCCEEDED = "succeeded"
    """All planned steps are committed."""
    STOPPED = "stopped"
    """The run was stopped and can resume from its checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Result of one run, including its restarts."""

    result: Result
    task: str
    steps: int
    """Number of committed global steps."""
    epochs: float
    """Number of epochs in those steps."""
    accuracy: float | None
    """Accuracy on the test samples; None if the task has no metric of this name."""
    loss: float | None
    """Loss on the test samples; without it, the loss of the last step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics on the test samples."""
    best: Best | None = None
    """Metric, value and step of the best evaluation; None without an evaluation."""
    stopped_early: bool = False
    """True if the run ended before its planned steps because evaluations stopped improving."""
    samples_lost: int
    """Samples that a completed epoch missed."""
    samples_repeated: int
    """Samples that an epoch used more than once."""
    samples_skipped: int = 0
    """Samples that could not be read and counted with weight 0; once per epoch."""
    lost_steps: int
    """Steps that were repeated because a crash or a rollback had lost them."""
    skipped_steps: int = 0
    """Steps that used their samples without changing the weights, because loss or gradient was not finite."""
    rollbacks: int = 0
    """Number of times that a guard returned the run to its last checkpoint."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """Number of restarts by cause, as counted by the launcher."""
    goodput: float
    """Productive time of surviving steps divided by the time since the first start, without suspended time; see
    :mod:`ddp_trainer.train.config.goodput_account`."""
    lost_seconds: float = 0.0
    """Productive time of the lost steps, in seconds."""
    largest_badput: str = ""
    """Largest cause of unproductive time: a state of the account, or ``lost_progress``."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds since the first start by state of the account; states without time are omitted."""
    seconds: float
    """Time since the first start of the run, in seconds."""
    world_size: int
    """Number of ranks at the end."""
    global_batch: int
    batch_slices: int
    seed: int
    generation: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {**asdict(self), "result": str(self.result)}

    def to_json(self) -> str:
        """Return the summary as one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Summary:
        """Return the summary with these fields (the inverse of :meth:`to_dict`)."""
        return cls(**{**values, "result": Result(values["result"])})

    def write(self, file: Path) -> None:
        """Write the summary to a file.

        Raises:
            OSError: The file could not be written.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, (self.to_json() + "\n").encode())


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a run in this process."""

    summary: Summary
    exit_code: int
    """0 on success; 143 after a requested stop, 130 after Ctrl-C."""
    error: CheckpointNotWritten | None = None
    """Set if the run is complete but its last state is not on any disk."""
