"""Words of the trainer's by which ``kubectl ddp`` plans and checks a job, and how one is refused that is none of them.

The chart gets them as data. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from ddp_trainer.common.model_constraints import Violation


class PrecisionName(StrEnum):
    """Numbers that forward and backward compute with; weights and optimizer stay in 32 bits."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class OptimizerName(StrEnum):
    """Optimizers that the command line offers; a task may bring its own."""

    ADAMW = "adamw"
    SGD = "sgd"


class PipelineSchedule(StrEnum):
    """In which order the stages of a pipeline compute."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"
    ZERO_BUBBLE_V = "zero-bubble-v"


CHOICES: Final[Mapping[str, type[StrEnum]]] = {
    "--precision": PrecisionName,
    "--optimizer": OptimizerName,
    "--pipeline-schedule": PipelineSchedule,
}
"""By their flags."""


def unknown(said: Callable[[str], str | None]) -> Iterator[Violation]:
    """Words that are none of a flag's; ``said`` has what a flag was given, None where it is left out.

    >>> next(unknown({"--optimizer": "lion"}.get))
    Violation(sentence="The trainer has no --optimizer 'lion'.", help='Give adamw or sgd.')
    """
    for flag, words in CHOICES.items():
        word = said(flag)
        if word is not None and word not in set(words):
            *others, last = words
            yield Violation(f"The trainer has no {flag} '{word}'.", f"Give {', '.join(others)} or {last}.")
