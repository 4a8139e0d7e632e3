"""Values of options with a fixed set of them, and the constraints that a model puts on them.

``kubectl ddp`` checks a job of the reference trainer before it sends the job, and the trainer checks jobs that were
submitted by other means. Both must report the same, so this module holds the rules: arithmetic, standard library only.
Each ``of_*`` function yields the violations, none for a valid layout.

:func:`flag_violations` reports flags that have another name now and values that an option does not have. Standard
library only.

:func:`find_conflicts` yields the options that conflict with a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ddp_trainer.common.parallel_dims import DIMENSION_NAMES, LayoutRange


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
    limits = SCHEDULES[schedule]
    if limits.fills and micro_batches < pp:
        yield Violation(
            f"--pipeline-schedule {schedule} needs at least {pp} micro-batches for {pp} stages, and a step has "
            f"{micro_batches}.",
            "Give a smaller --micro-batch, a larger --global-batch, or --pipeline-schedule gpipe.",
        )
    if limits.in_rounds and micro_batches > pp and micro_batches % (micro_batches // pp):
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


def count_batch_slices(requested: int | None, *, max_ranks: int, parts: int, global_batch: int) -> int:
    """Return the number of batch slices: ``requested``, else a power of two that is enough for the most ranks.

    The default is at most ``global_batch``.

    >>> count_batch_slices(None, max_ranks=6, parts=3, global_batch=64)
    8
    """
    if requested is not None:
        return requested
    return int(min(1 << (max(max_ranks, parts) - 1).bit_length(), global_batch))


def part_samples(part: int, *, parts: int, batch_slices: int, global_batch: int) -> int:
    """Return the samples of a step that one of ``parts`` parts of a batch has; each part is a run of batch slices.

    >>> [part_samples(part, parts=3, batch_slices=8, global_batch=32) for part in range(3)]
    [12, 12, 8]
    """
    first, beyond = (_start(batch_slices, parts, index) for index in (part, part + 1))
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


def flag_violations(value_of: Callable[[str], str | None]) -> Iterator[Violation]:
    """Yield a violation for each flag that has another name now, or whose value is not allowed.

    Args:
        value_of: Returns the value of a flag, or None where the flag was not given.

    >>> next(flag_violations({"--optimizer": "lion"}.get))
    Violation(message="The trainer has no --optimizer 'lion'.", help='Give adamw or sgd.')
    """
    for flag in RENAMED:
        if value_of(flag) is not None:
            yield Violation(renamed_flag(flag), "")
    for flag, words in CHOICES.items():
        word = value_of(flag)
        if word is not None and word not in set(words):
            *others, last = words
            yield Violation(f"The trainer has no {flag} '{word}'.", f"Give {', '.join(others)} or {last}.")


class OptionCondition(NamedTuple):
    """An option of the trainer, with the value to which a conflict applies."""

    flag: str
    value: str = ""
    """Value to which the conflict applies; empty for any value."""
    but: str = ""
    """Value to which the conflict does not apply, since it changes nothing."""
    is_switch: bool = False


class Where(StrEnum):
    """Layouts to which a conflict applies: those with several ranks along a dimension, or of a special kind.

    For a range, its largest layout counts.
    """

    SHARDED = "sharded"
    """No rank holds the whole model."""
    PP = "pp"
    TP = "tp"
    UNSHARDED = "unsharded"
    """``shard`` is 1, or no layout is given."""


@dataclass(frozen=True, slots=True)
class OptionConflict:
    """Options that a layout does not support if all of them are given."""

    where: Where
    words: tuple[OptionCondition, ...]
    message: str
    """Error message. ``{parallel}`` stands for the layout, ``{value}`` for the value of the first option."""
    help: str


ValueOf = Callable[[OptionCondition], str | None]
"""Function that returns the value of an option: empty for a switch, None where it has its default."""

_ONE: Final = "Leave one of them out."
_OF_DDP: Final = "it is an option of DDP"
OF_SHARD: Final = (
    OptionCondition("--fsdp-blocks"),
    OptionCondition("--no-fsdp-reshard", is_switch=True),
    OptionCondition("--fsdp-prefetch", but="0"),
    OptionCondition("--fsdp-offload", is_switch=True),
)
_COMPILE: Final = OptionCondition("--compile", is_switch=True)
_AGAIN: Final = OptionCondition("--activation-checkpointing", is_switch=True)
_SPLIT_BACKWARD: Final = ("zero-bubble", "zero-bubble-v")


def _sharded(given: str, why: str, *words: OptionCondition) -> OptionConflict:
    return OptionConflict(Where.SHARDED, words, f"{given} does not go with --parallel {{parallel}}: {why}.", _ONE)


def _two_times(given: OptionCondition, schedule: str) -> OptionConflict:
    return OptionConflict(
        Where.PP,
        (given, OptionCondition("--pipeline-schedule", schedule)),
        f"{given.flag} does not go with --pipeline-schedule {schedule}, which computes the gradients of activations "
        "and of weights at two times.",
        "Give --pipeline-schedule 1f1b or interleaved.",
    )


CLASHES: Final[Sequence[OptionConflict]] = (
    _sharded("--strategy {value}", "the layout sets how ranks synchronize", OptionCondition("--strategy", but="ddp")),
    _sharded(
        "--level exact", "gradients are added up in an order that the layout sets", OptionCondition("--level", "exact")
    ),
    _sharded("--balance dynamic", "all ranks make the same passes", OptionCondition("--balance", "dynamic")),
    _sharded(
        "--fsdp-offload with --precision fp16",
        "the loss scale looks at gradients on the GPU",
        OptionCondition("--fsdp-offload", is_switch=True),
        OptionCondition("--precision", "fp16"),
    ),
    _sharded(
        "--channels-last",
        "weights are cut along their first dimension",
        OptionCondition("--channels-last", is_switch=True),
    ),
    *(
        _sharded(flag, _OF_DDP, OptionCondition(flag, is_switch=True))
        for flag in (
            "--find-unused-parameters",
            "--static-graph",
            "--sync-batchnorm",
            "--no-gradient-as-bucket-view",
        )
    ),
    _sharded("--bucket-mb", _OF_DDP, OptionCondition("--bucket-mb")),
    _sharded("--evaluate-on rank0", "no rank holds the whole model", OptionCondition("--evaluate-on", "rank0")),
    *(
        OptionConflict(
            Where.PP,
            (word,),
            f"{word.flag} does not go with --parallel {{parallel}}: stages gather their weights once in a step.",
            "Leave it out, or leave pp out.",
        )
        for word in OF_SHARD
    ),
    *(_two_times(given, schedule) for given in (_AGAIN, _COMPILE) for schedule in _SPLIT_BACKWARD),
    OptionConflict(
        Where.TP,
        (OptionCondition("--recompute", "cheap"), _COMPILE),
        "--recompute cheap does not go with --compile where weights are cut by tp: torch's compiler fails there.",
        "Give --recompute all, or N for every N-th block.",
    ),
)
"""Conflicts in the order in which they are reported."""

WITHOUT_SHARD: Final[Sequence[OptionConflict]] = tuple(
    OptionConflict(
        Where.UNSHARDED,
        (word,),
        f"{word.flag} is of --parallel shard=N, and --parallel is {{parallel}}.",
        "Give a layout with a shard above 1, or leave it out.",
    )
    for word in OF_SHARD
)
"""Options of ``shard`` that need a layout with it; checked when the job's own layout is known."""


def find_conflicts(
    layouts: LayoutRange | None, value_of: ValueOf, among: Sequence[OptionConflict] = CLASHES
) -> Iterator[Violation]:
    """Yield a violation for each conflict between the options and the layouts.

    >>> given = {"--level": "exact"}
    >>> next(find_conflicts(LayoutRange.parse("shard=2"), lambda word: given.get(word.flag))).message
    '--level exact does not go with --parallel shard=2: gradients are added up in an order that the layout sets.'
    """
    kinds = _layout_kinds(layouts)
    for clash in among:
        if clash.where in kinds and all(_is_given(word, value_of) for word in clash.words):
            value = value_of(clash.words[0]) or ""
            yield Violation(clash.message.format(parallel=layouts or "not given", value=value), clash.help)


def _layout_kinds(layouts: LayoutRange | None) -> set[Where]:
    if layouts is None:
        return {Where.UNSHARDED}
    largest = layouts.largest
    holds = {Where.SHARDED: largest.replica > 1, Where.UNSHARDED: largest.shard == 1}
    holds |= {where: getattr(largest, where) > 1 for where in Where if where in DIMENSION_NAMES}
    return {where for where, is_so in holds.items() if is_so}


def _is_given(word: OptionCondition, value_of: ValueOf) -> bool:
    text = value_of(word)
    if text is None:
        return False
    return word.is_switch or (text == word.value if word.value else text != word.but)
