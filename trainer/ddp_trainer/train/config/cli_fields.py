"""Command-line flags of option fields: help group, help text and parser.

:func:`flagged` returns the metadata of a dataclass field in :mod:`ddp_trainer.train.config.options` and
:mod:`ddp_trainer.train.config.output_options`; the other functions parse values.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from ddp_trainer.train.utils.errors import BadConfig


class OptionGroup(StrEnum):
    """Option group headings in ``--help``."""

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
    """Return the field metadata that defines a command-line flag.

    Args:
        group: Heading in ``--help``.
        help_text: Text in ``--help``.
        parse: Converts the argument. Without it the flag is a switch; a switch that is on by default gets a ``--no-``
            form.
        metavar: Placeholder of the argument in ``--help``.
    """
    return {"group": group, "help": help_text, "parse": parse, "metavar": metavar}


def layouts(text: str) -> LayoutRange:
    """Parse the value of ``--parallel``.

    Raises:
        BadConfig: The text is neither a layout nor a range of layouts.
    """
    try:
        return LayoutRange.parse(text)
    except LayoutError as err:
        raise BadConfig(f"--parallel is {text!r}: {err}.") from None


def names(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of names, the value of ``--fsdp-blocks``.

    >>> names("Block, Head")
    ('Block', 'Head')

    Raises:
        BadConfig: The list is empty.
    """
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise BadConfig(f"--fsdp-blocks is {text!r}.", hint="Give names of classes, with commas between them.")
    return found
