"""Options of the trainer that conflict with a layout, and the error messages for them.

:func:`find_conflicts` is the entry point. Like :mod:`ddp_trainer.common.trainer_options`, it is used by the trainer,
and by ``kubectl ddp`` before a job is sent. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ddp_trainer.common.parallel_dims import DIMENSION_NAMES, LayoutRange
from ddp_trainer.common.trainer_options import Violation


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

    SPREAD = "spread"
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


Said = Callable[[OptionCondition], str | None]
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


def _spread(given: str, why: str, *words: OptionCondition) -> OptionConflict:
    return OptionConflict(Where.SPREAD, words, f"{given} does not go with --parallel {{parallel}}: {why}.", _ONE)


def _two_times(given: OptionCondition, schedule: str) -> OptionConflict:
    return OptionConflict(
        Where.PP,
        (given, OptionCondition("--pipeline-schedule", schedule)),
        f"{given.flag} does not go with --pipeline-schedule {schedule}, which computes the gradients of activations "
        "and of weights at two times.",
        "Give --pipeline-schedule 1f1b or interleaved.",
    )


CLASHES: Final[Sequence[OptionConflict]] = (
    _spread("--strategy {value}", "the layout sets how ranks synchronize", OptionCondition("--strategy", but="ddp")),
    _spread(
        "--level exact", "gradients are added up in an order that the layout sets", OptionCondition("--level", "exact")
    ),
    _spread("--balance dynamic", "all ranks make the same passes", OptionCondition("--balance", "dynamic")),
    _spread(
        "--fsdp-offload with --precision fp16",
        "the loss scale looks at gradients on the GPU",
        OptionCondition("--fsdp-offload", is_switch=True),
        OptionCondition("--precision", "fp16"),
    ),
    _spread(
        "--channels-last",
        "weights are cut along their first dimension",
        OptionCondition("--channels-last", is_switch=True),
    ),
    *(
        _spread(flag, _OF_DDP, OptionCondition(flag, is_switch=True))
        for flag in (
            "--find-unused-parameters",
            "--static-graph",
            "--sync-batchnorm",
            "--no-gradient-as-bucket-view",
        )
    ),
    _spread("--bucket-mb", _OF_DDP, OptionCondition("--bucket-mb")),
    _spread("--evaluate-on rank0", "no rank holds the whole model", OptionCondition("--evaluate-on", "rank0")),
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
    layouts: LayoutRange | None, said: Said, among: Sequence[OptionConflict] = CLASHES
) -> Iterator[Violation]:
    """Yield a violation for each conflict between the options and the layouts.

    >>> given = {"--level": "exact"}
    >>> next(find_conflicts(LayoutRange.parse("shard=2"), lambda word: given.get(word.flag))).message
    '--level exact does not go with --parallel shard=2: gradients are added up in an order that the layout sets.'
    """
    kinds = _layout_kinds(layouts)
    for clash in among:
        if clash.where in kinds and all(_is_given(word, said) for word in clash.words):
            value = said(clash.words[0]) or ""
            yield Violation(clash.message.format(parallel=layouts or "not given", value=value), clash.help)


def _layout_kinds(layouts: LayoutRange | None) -> set[Where]:
    if layouts is None:
        return {Where.UNSHARDED}
    largest = layouts.largest
    holds = {Where.SPREAD: largest.replica > 1, Where.UNSHARDED: largest.shard == 1}
    holds |= {where: getattr(largest, where) > 1 for where in Where if where in DIMENSION_NAMES}
    return {where for where, is_so in holds.items() if is_so}


def _is_given(word: OptionCondition, said: Said) -> bool:
    text = said(word)
    if text is None:
        return False
    return word.is_switch or (text == word.value if word.value else text != word.but)
