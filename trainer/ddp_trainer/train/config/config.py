"""Configuration of a run: :class:`Config`, a frozen dataclass that validates itself when it is created.

It extends the option tables of :mod:`ddp_trainer.train.config.options` and
:mod:`ddp_trainer.train.config.output_options`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.train.config.option_rules import check as check_options
from ddp_trainer.train.config.output_options import Keeping
from ddp_trainer.train.utils.errors import BadConfig

LARGEST_BATCH = 1 << 20
"""Maximum global batch. Sums of this many 32-bit sample hashes are exact in float64, the dtype of the ranks' votes."""


class ScheduleName(StrEnum):
    """Learning rate schedules."""

    COSINE = "cosine"
    LINEAR = "linear"
    CONSTANT = "constant"


class DeviceName(StrEnum):
    """Devices to compute on."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Keeping):
    """Configuration of one run, independent of the number of workers."""

    task: str = "digits"
    """Name of a built-in task, or ``module:factory`` of a user-defined task."""
    epochs: int = 30
    """Passes over the training samples."""
    max_steps: int | None = None
    """Maximum number of global steps. The run can end within an epoch."""
    global_batch: int = 64
    """Samples per global step, over all ranks. The last step of an epoch can have fewer."""
    shards: int | None = None
    """Number of logical shards of a global batch, the maximum number of ranks that can share it; derived if None."""
    seed: int = 0
    """Seed of the initial weights, the sample order and all random draws."""

    optimizer: OptimizerName = OptimizerName.ADAMW
    learning_rate: float = 3e-3
    """Peak learning rate."""
    weight_decay: float = 0.01
    momentum: float = 0.9
    """Momentum of SGD. AdamW uses torch's default betas."""
    schedule: ScheduleName = ScheduleName.COSINE
    warmup_steps: int = 50
    """Global steps over which the learning rate rises linearly from zero."""
    clip_norm: float | None = None
    """Maximum norm of the whole gradient, after the sum over ranks."""

    evaluate_every: int = 1
    """Epochs between evaluations on the test samples. The end of the run is always evaluated."""

    checkpoint_dir: Path | None = None
    """Directory of the checkpoints; None disables checkpoints."""
    checkpoint_scope: CheckpointScope | None = None
    """Sharing of the directory: by all ranks, or by the ranks of one pod; None uses the value of the launcher."""
    checkpoint_steps: int | None = None
    """Global steps between checkpoints: one is saved when the step is a multiple of this."""
    checkpoint_seconds: float | None = 30.0
    """Seconds between checkpoints, by the clock of rank 0."""
    keep: int = 3
    """Number of checkpoints to keep."""

    device: DeviceName = DeviceName.AUTO
    timeout_seconds: float = 120.0
    """Timeout of collectives in seconds. When it expires, a peer counts as lost."""
    log_seconds: float = 5.0
    """Seconds between plain progress lines."""
    log_steps: int | None = None
    """Steps between plain progress lines, instead of ``log_seconds``."""
    log_json: bool = False
    """Print progress as JSON lines."""
    summary: Path | None = None
    """File of the final summary; None writes none."""

    def __post_init__(self) -> None:
        """Validate the values and their combinations.

        Raises:
            BadConfig: A value is out of range, or two values conflict.
        """
        check_options(self)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise BadConfig(f"{flag(name)} is {value}.", hint=f"Give {least} or more.")
        for name in ("learning_rate", "timeout_seconds", "clip_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise BadConfig(f"{flag(name)} is {value}.", hint="Give a finite number above 0.")
        if self.global_batch > LARGEST_BATCH:
            raise BadConfig(f"--global-batch is {self.global_batch}.", hint=f"Give {LARGEST_BATCH} or fewer.")
        if self.shards is not None and self.shards > self.global_batch:
            raise BadConfig(
                f"--shards is {self.shards}, but a global batch of {self.global_batch} holds no more than "
                f"{self.global_batch} shards.",
                hint="Raise --global-batch or lower --shards.",
            )
        if not 0 <= self.seed < 1 << 63:
            raise BadConfig(f"--seed is {self.seed}.", hint="Give a number from 0 to 2^63 - 1.")


_LEAST: dict[str, float] = {
    "epochs": 1,
    "max_steps": 1,
    "global_batch": 1,
    "shards": 1,
    "weight_decay": 0,
    "momentum": 0,
    "warmup_steps": 0,
    "evaluate_every": 1,
    "checkpoint_steps": 1,
    "checkpoint_seconds": 0,
    "keep": 1,
    "window": 1,
    "image_size": 1,
    "workers": 0,
    "prefetch": 1,
    "mtbf": 1,
    "profile_rank": 0,
    "log_seconds": 0,
    "log_steps": 1,
}


def flag(field: str) -> str:
    """Return the command-line flag of a field.

    >>> flag("global_batch")
    '--global-batch'
    """
    return "--" + field.replace("_", "-")
