"""How a line of a table of options becomes a flag: where ``--help`` shows it, with which words, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.train.utils.errors import BadConfig


class OptionGroup(StrEnum):
    """Headings in ``--help``."""

    TASK = "task"
    DATA = "data"
    STRATEGY = "strategy"
    SPEED = "speed and memory"
    GUARDS = "guards"
    RATE = "learning rate"
    KEEPING = "what is kept"
    EVALUATION = "evaluation"
    REPORTS = "reports"


def flagged(
    group: OptionGroup,
    help_text: str,
    *,
    parse: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> dict[str, Any]:
    """A field's flag; without ``parse`` it is a switch, and one that is on by default has a ``--no-`` form."""
    return {"group": group, "help": help_text, "parse": parse, "metavar": metavar}


def layouts(text: str) -> LayoutRange:
    """``--parallel``.

    Raises:
        BadConfig: it is no layout, or range of them.
    """
    try:
        return LayoutRange.parse(text)
    except LayoutError as err:
        raise BadConfig(f"--parallel is {text!r}: {err}.") from None


def names(text: str) -> tuple[str, ...]:
    """Names with commas between them.

    >>> names("Block, Head")
    ('Block', 'Head')

    Raises:
        BadConfig: there is none.
    """
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise BadConfig(f"--fsdp-blocks is {text!r}.", hint="Give names of classes, with commas between them.")
    return found
