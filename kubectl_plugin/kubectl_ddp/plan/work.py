"""What one step of training is: how many samples of which length, in which numbers, with which optimizer."""

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
    """Numbers that forward and backward compute with; weights, gradients and optimizer stay in 32 bits."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def computed(self) -> int:
        """Bytes of a number that a matrix is multiplied with."""
        return 2 if self is Precision.BF16 else 4


KEPT_OF_WEIGHT: Final[Mapping[OptimizerName, int]] = {OptimizerName.ADAMW: 8, OptimizerName.SGD: 4}
"""Bytes that an optimizer keeps of each weight: two moments, or one momentum, in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One step."""

    sequence: int
    """Tokens of a sample."""
    global_batch: int
    """Samples of a step, over all ranks."""
    precision: Precision = Precision.BF16
    optimizer: OptimizerName = OptimizerName.ADAMW
    micro_batch: int | None = None
    """Samples of one pass; chosen when ``None``."""
    shards: int | None = None
    """Into how many slices a batch is cut; the trainer's own number when ``None``."""
    recomputation: Recomputation | None = None
    """What is computed again in the backward pass; chosen when ``None``."""
    efficiency: float = 0.6
    """Share of a GPU's peak that it reaches while it computes and waits for nobody."""

    def __post_init__(self) -> None:
        """Raises UsageError for what no step is."""
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
