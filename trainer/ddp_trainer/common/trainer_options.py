"""Values of options with a fixed set of them, and the constraints that a model puts on them.

``kubectl ddp`` checks a job of the reference trainer before it sends the job, and the trainer checks jobs that were
submitted by other means. Both must report the same, so this module holds the rules: arithmetic, standard library only.
Each ``of_*`` function yields the violations, none for a valid layout.

:func:`unknown` reports flags that have another name now and values that an option does not have. Standard library
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Violation(NamedTuple):
    """Reason why a layout is invalid, and the fix."""

    message: str
    help: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Requirements of a pipeline schedule."""

    stages_per_rank: int = 1
    in_rounds: bool = False
    """Micro-batches run in equal rounds, one round per ``pp`` micro-batches."""
    fills: bool = False
    """The schedule needs at least as many micro-batches as there are ranks."""


SCHEDULES: Final[Mapping[str, Schedule]] = {
    "gpipe": Schedule(),
    "1f1b": Schedule(fills=True),
    "interleaved": Schedule(stages_per_rank=2, in_rounds=True),
    "zero-bubble": Schedule(stages_per_rank=2, in_rounds=True),
    "zero-bubble-v": Schedule(stages_per_rank=2),
}
"""Requirements by the trainer's names of schedules."""


def of_slices(tp: int, *, heads: int, vocabulary: int) -> Iterator[Violation]:
    """Yield a violation unless ``tp`` divides the attention heads and the vocabulary evenly.

    >>> [misfit.message for misfit in of_slices(3, heads=4, vocabulary=256)][0]
    "The model's number of heads is 4, which tp=3 ranks cannot share evenly."
    """
    for name, size in (("number of heads", heads), ("vocabulary", vocabulary)):
        if size % tp:
            yield Violation(
                f"The model's {name} is {size}, which tp={tp} ranks cannot share evenly.",
                f"Give a tp that divides {size}.",
            )


def of_stages(stages: int, *, layers: int) -> Iterator[Violation]:
    """Yield a violation unless every pipeline stage has a layer.

    >>> next(of_stages(8, layers=6)).help
    'Give a pp of at most 6, half of that with two stages on each rank.'
    """
    if stages > layers:
        yield Violation(
            f"The model's layers are {layers}, which cannot fill {stages} stages of a pipeline.",
            f"Give a pp of at most {layers}, half of that with two stages on each rank.",
        )


def of_micro_batches(schedule: str, micro_batches: int, *, pp: int) -> Iterator[Violation]:
    """Yield a violation unless the pipeline schedule supports this number of micro-batches per step.

    >>> list(of_micro_batches("gpipe", 1, pp=4)), len(list(of_micro_batches("1f1b", 3, pp=4)))
    ([], 1)
    """
    asks = SCHEDULES[schedule]
    if asks.fills and micro_batches < pp:
        yield Violation(
            f"--pipeline-schedule {schedule} needs at least {pp} micro-batches for {pp} stages, and a step has "
            f"{micro_batches}.",
            "Give a smaller --micro-batch, a larger --global-batch, or --pipeline-schedule gpipe.",
        )
    if asks.in_rounds and micro_batches > pp and micro_batches % (micro_batches // pp):
        yield Violation(
            f"--pipeline-schedule {schedule} takes micro-batches in equal rounds over {pp} ranks, and a step has "
            f"{micro_batches}.",
            f"Give a --micro-batch that makes them a multiple of {pp}.",
        )


def micro_batch_size(samples: int, most: int | None, pp: int) -> int:
    """Return the samples per micro-batch: at most ``most``, by default a fourth of a rank's share, and at least 1.

    Args:
        samples: Samples of one step on all ranks of a pipeline together.
        most: Requested size of a micro-batch; None for the default.
        pp: Stages of the pipeline.

    >>> micro_batch_size(64, None, 2), micro_batch_size(64, 4, 2), micro_batch_size(3, None, 2)
    (8, 4, 1)
    """
    return max(1, min(most, samples) if most is not None else samples // (4 * pp))


def count_batch_slices(asked: int | None, *, max_ranks: int, parts: int, global_batch: int) -> int:
    """Return the number of batch slices: ``asked``, else a power of two that is enough for the most ranks.

    The default is at most ``global_batch``.

    >>> count_batch_slices(None, max_ranks=6, parts=3, global_batch=64)
    8
    """
    if asked is not None:
        return asked
    return int(min(1 << (max(max_ranks, parts) - 1).bit_length(), global_batch))


def share(part: int, *, parts: int, batch_slices: int, global_batch: int) -> int:
    """Return the samples of a step that one of ``parts`` parts of a batch has; each part is a run of batch slices.

    >>> [share(part, parts=3, batch_slices=8, global_batch=32) for part in range(3)]
    [12, 12, 8]
    """
    first, beyond = (_start(batch_slices, parts, each) for each in (part, part + 1))
    return _start(global_batch, batch_slices, beyond) - _start(global_batch, batch_slices, first)


def _start(length: int, parts: int, part: int) -> int:
    """Return the start of a part. Longer parts come first; lengths differ by at most one."""
    size, longer = divmod(length, parts)
    return part * size + min(part, longer)


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
