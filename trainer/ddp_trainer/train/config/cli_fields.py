"""Dataclass fields that are command-line options: :func:`option` declares one, :func:`add_options` adds its flag.

The field is the only place that states name, type, default, help text and checks of an option. The parser, ``--help``,
:func:`check_values` and the page ``docs/trainer-options.md`` are derived from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import Field, field, fields
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args, get_type_hints

from ddp_trainer.train.utils.errors import BadConfig

_T = TypeVar("_T")

_METAVARS: Final = {int: "N", float: "X", str: "NAME", Path: "DIR"}
"""Placeholder of a value in ``--help``, by its type."""


class OptionGroup:
    """Base class of a dataclass of options. ``heading`` is its heading in ``--help`` and in the documentation."""

    heading: ClassVar[str]

    def __init_subclass__(cls, heading: str = "") -> None:
        cls.heading = heading


class Constraint(NamedTuple):
    """Condition on the value of an option. An option that is None is not checked."""

    accepts: Callable[[Any], bool]
    hint: str


def at_least(least: float) -> Constraint:
    """Return the check that a number is ``least`` or more."""
    return Constraint(lambda value: value >= least, f"Give {least} or more.")


POSITIVE: Final = Constraint(lambda value: 0 < value < float("inf"), "Give a finite number above 0.")


def option(
    default: _T,
    help_text: str,
    *checks: Constraint,
    parse: Callable[[str], Any] | None = None,
    metavar: str | None = None,
) -> _T:
    """Declare a dataclass field that is a command-line option.

    Args:
        default: Value of the option if its flag is not given.
        help_text: Text in ``--help``. The default is appended.
        checks: Conditions on the value.
        parse: Converts the argument (default: derived from the type of the field).
        metavar: Placeholder of the argument in ``--help`` (default: derived from the type of the field).
    """
    return field(default=default, metadata={"help": help_text, "checks": checks, "parse": parse, "metavar": metavar})


def flag(name: str) -> str:
    """Return the command-line flag of a field.

    >>> flag("global_batch")
    '--global-batch'
    """
    return "--" + name.replace("_", "-")


def add_options(parser: argparse.ArgumentParser, options: type[Any]) -> list[argparse.Action]:
    """Add the flags of an :class:`OptionGroup` to a parser, and return them.

    A bool becomes a switch. A switch that is on by default also has a ``--no-`` form.
    """
    group = parser.add_argument_group(options.heading)
    hints = get_type_hints(options)
    return [group.add_argument(flag(each.name), **_argument(each, hints[each.name])) for each in fields(options)]


def _argument(each: Field[Any], hint: Any) -> dict[str, Any]:
    """Return the keyword arguments of ``add_argument`` for a field with this type hint."""
    kind = (get_args(hint) or [hint])[0]  # without "| None"
    text, default = each.metadata["help"], each.default
    if kind is bool:
        return {"help": text, "action": argparse.BooleanOptionalAction if default else "store_true"}
    shown = f"{default:g}" if isinstance(default, float) else default
    return {
        "help": text if default is None else f"{text} (default: {shown})",
        "type": each.metadata["parse"] or (kind if kind in _METAVARS else partial(_one_of, kind)),
        "metavar": each.metadata["metavar"] or _METAVARS.get(kind) or f"{{{','.join(kind)}}}",
    }


def _one_of(kind: type[StrEnum], text: str) -> StrEnum:
    if text not in list(kind):
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(kind)}")
    return kind(text)


def check_values(options: Any) -> None:
    """Check each option of a dataclass instance by itself.

    Raises:
        BadConfig: A value is out of range.
    """
    for each in fields(options):
        value = getattr(options, each.name)
        for check in each.metadata["checks"]:
            if value is not None and not check.accepts(value):
                raise BadConfig(f"{flag(each.name)} is {value}.", hint=check.hint)
