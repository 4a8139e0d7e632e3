"""Checks of the reference trainer's options: unknown values, and conflicts with the layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from ddp_trainer.common.enums import unknown
from ddp_trainer.common.layout_range import LayoutRange
from ddp_trainer.common.model_constraints import Violation
from ddp_trainer.common.option_conflicts import CLASHES, WITHOUT_SHARD, OptionCondition, Said, find_conflicts
from kubectl_ddp.plan.reference_model import last_flag_value


def option_value(args: Sequence[str], word: OptionCondition) -> str | None:
    """Return the last value of an option; empty for a switch, None if it is not given.

    >>> option_value(["--strategy", "ddp", "--strategy=manual"], OptionCondition("--strategy"))
    'manual'
    >>> switch = OptionCondition("--no-fsdp-reshard", is_switch=True)
    >>> option_value(["--no-fsdp-reshard", "--fsdp-reshard"], switch) is None
    True
    """
    if word.is_switch:
        either = (word.flag, word.flag.replace("--no-", "--", 1))
        return "" if next((each for each in reversed(args) if each in either), None) == word.flag else None
    return last_flag_value(args, word.flag)


def option_violations(layouts: LayoutRange | None, said: Said) -> Iterator[Violation]:
    """Yield the reasons why the trainer would refuse its options."""
    yield from find_conflicts(layouts, said, (*CLASHES, *WITHOUT_SHARD))


def invalid_options(args: Sequence[str]) -> Iterator[Violation]:
    """Yield the options that the trainer would refuse with any layout.

    >>> next(invalid_options(["--precision", "fp64"])).help
    'Give fp32, tf32, bf16 or fp16.'
    """
    yield from unknown(partial(last_flag_value, args))
