"""Options of the trainer that ``kubectl ddp`` checks before a job is sent.

:func:`unknown` reports flags that have another name now and values that an option does not have. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from ddp_trainer.common.model_constraints import Violation


class PrecisionName(StrEnum):
    """Number formats of the forward and backward pass. Weights and optimizer state stay in 32 bits."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class OptimizerName(StrEnum):
    """Optimizers that the command line offers. A task may define another one."""

    ADAMW = "adamw"
    SGD = "sgd"


class PipelineSchedule(StrEnum):
    """Orders in which the stages of a pipeline compute."""

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
"""Allowed values of each flag."""


RENAMED: Final[Mapping[str, str]] = {"--shards": "--batch-slices", "--workers": "--loader-workers"}
"""Former name of a flag → its name. A former name is refused."""


def renamed_flag(flag: str) -> str:
    """Return the sentence that refuses the former name of a flag; empty for every other word.

    >>> renamed_flag("--shards")
    '--shards is now --batch-slices.'
    """
    return f"{flag} is now {RENAMED[flag]}." if flag in RENAMED else ""


def unknown(said: Callable[[str], str | None]) -> Iterator[Violation]:
    """Yield a violation for each flag that has another name now, or whose value is not allowed.

    Args:
        said: Returns the value of a flag, or None where the flag was not given.

    >>> next(unknown({"--optimizer": "lion"}.get))
    Violation(message="The trainer has no --optimizer 'lion'.", help='Give adamw or sgd.')
    """
    for flag in RENAMED:
        if said(flag) is not None:
            yield Violation(renamed_flag(flag), "")
    for flag, words in CHOICES.items():
        word = said(flag)
        if word is not None and word not in set(words):
            *others, last = words
            yield Violation(f"The trainer has no {flag} '{word}'.", f"Give {', '.join(others)} or {last}.")
