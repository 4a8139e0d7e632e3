"""Options for checkpoints, evaluation and reports, with the metadata of their command-line flags.

They extend the options of :mod:`ddp_trainer.train.config.options`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from ddp_trainer.train.config.cli_fields import OptionGroup, flagged
from ddp_trainer.train.config.options import Options
from ddp_trainer.train.utils.errors import BadConfig


class CheckpointMode(StrEnum):
    """Modes of writing a checkpoint: in the background, or while training waits."""

    ASYNC = "async"
    """Training waits for a copy in memory. A thread writes the copy to the disk."""
    SYNC = "sync"


class EvaluateOn(StrEnum):
    """Ranks that evaluate."""

    ALL = "all"
    RANK0 = "rank0"


@dataclass(frozen=True, slots=True)
class EarlyStop:
    """Early stopping: end the run after ``patience`` evaluations without a better ``metric``."""

    metric: str
    patience: int

    @classmethod
    def parse(cls, text: str) -> EarlyStop:
        """Parse ``METRIC:PATIENCE``.

        Raises:
            BadConfig: The text has another form, or the patience is 0.
        """
        metric, _, patience = text.rpartition(":")
        if not metric or not patience.isdecimal() or not int(patience):
            raise BadConfig(f"--early-stop is {text!r}.", hint="Give METRIC:PATIENCE, for example loss:3.")
        return cls(metric, int(patience))


@dataclass(frozen=True, slots=True)
class ProfileWindow:
    """Range of global steps to profile."""

    start: int
    """First step, counted from 0."""
    count: int

    @classmethod
    def parse(cls, text: str) -> ProfileWindow:
        """Parse ``START:COUNT``.

        Raises:
            BadConfig: The text has another form, or the count is 0.
        """
        start, _, count = text.partition(":")
        if not start.isdecimal() or not count.isdecimal() or not int(count):
            raise BadConfig(f"--profile is {text!r}.", hint="Give START:COUNT in steps, for example 100:5.")
        return cls(int(start), int(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping(Options):
    """Options of checkpoints, evaluation and reports. :class:`ddp_trainer.train.config.config.Config` inherits them."""

    checkpoint_mode: CheckpointMode = field(
        default=CheckpointMode.ASYNC,
        metadata=flagged(OptionGroup.KEEPING, "write beside the training, or while it waits", parse=CheckpointMode),
    )
    keep_best: str | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.KEEPING, "also keep the best by this metric: accuracy, loss", parse=str, metavar="METRIC"
        ),
    )
    mtbf: float | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.KEEPING,
            "mean time between failures, for the advice how often to save",
            parse=float,
            metavar="S",
        ),
    )
    init_from: Path | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.KEEPING,
            "begin with the weights of a plain .pt or .safetensors file, or of a *.safetensors.index.json",
            parse=Path,
            metavar="FILE",
        ),
    )
    init_optimizer: bool = field(
        default=False, metadata=flagged(OptionGroup.KEEPING, "with --init-from, take the optimizer's state too")
    )
    evaluate_on: EvaluateOn = field(
        default=EvaluateOn.ALL,
        metadata=flagged(OptionGroup.EVALUATION, "which ranks evaluate", parse=EvaluateOn),
    )
    early_stop: EarlyStop | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.EVALUATION,
            "end after so many evaluations without a better METRIC",
            parse=EarlyStop.parse,
            metavar="METRIC:PATIENCE",
        ),
    )
    tensorboard: Path | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.REPORTS, "write TensorBoard events (needs tensorboard)", parse=Path, metavar="DIR"
        ),
    )
    csv: Path | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.REPORTS, "append every step and evaluation to a CSV file", parse=Path, metavar="FILE"
        ),
    )
    profile: ProfileWindow | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.REPORTS,
            "write a torch profiler trace of COUNT steps from step START on",
            parse=ProfileWindow.parse,
            metavar="START:COUNT",
        ),
    )
    profile_rank: int = field(
        default=0, metadata=flagged(OptionGroup.REPORTS, "the rank that is profiled", parse=int, metavar="N")
    )
    profile_dir: Path | None = field(
        default=None,
        metadata=flagged(
            OptionGroup.REPORTS,
            "where the trace goes; by default the run directory, else here",
            parse=Path,
            metavar="DIR",
        ),
    )
