"""Definition of one training step: samples, sequence length, precision, optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ddp_trainer.common.enums import OptimizerName
from kubectl_ddp.errors import UsageError
from kubectl_ddp.plan.recomputation import Recomputation

MOST: Final = 10**9


class Precision(StrEnum):
    """Precision of forward and backward passes; weights, gradients and optimizer stay in 32 bits."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def computed(self) -> int:
        """Bytes of a number in matrix multiplications."""
        return 2 if self is Precision.BF16 else 4


KEPT_OF_WEIGHT: Final[Mapping[OptimizerName, int]] = {OptimizerName.ADAMW: 8, OptimizerName.SGD: 4}
"""Optimizer bytes per weight: two moments, or one momentum, in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One training step."""

    sequence: int
    """Tokens per sample."""
    global_batch: int
    """Samples per step, over all ranks."""
    precision: Precision = Precision.BF16
    optimizer: OptimizerName = OptimizerName.ADAMW
    micro_batch: int | None = None
    """Samples of one pass; None to choose it."""
    batch_slices: int | None = None
    """Number of slices of a batch; None for the trainer's default."""
    recomputation: Recomputation | None = None
    """Recomputation in the backward pass; None to choose it."""
    efficiency: float = 0.6
    """Share of a GPU's peak that it reaches while it computes."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            UsageError: If a value is out of range.
        """
        sizes = {"--seq": self.sequence, "--global-batch": self.global_batch, "--micro-batch": self.micro_batch}
        for flag, value in sizes.items():
            if value is not None and not 1 <= value <= MOST:
                raise UsageError(f"{flag} is {value}.", hint=f"Give a whole number from 1 to {MOST}.")
        if self.micro_batch is not None and self.micro_batch > self.global_batch:
            raise UsageError(
                f"--micro-batch {self.micro_batch} is more than the --global-batch {self.global_batch}.",
                hint="Give a smaller one.",
            )
        if not 0 < self.efficiency <= 1:
            raise UsageError(f"--efficiency is {self.efficiency}.", hint="Give a share above 0 and at most 1.")
