"""Validation of the options of models."""

from __future__ import annotations

from ddp_trainer.train.utils.errors import BadConfig


def at_least(least: int, **options: int) -> None:
    """Refuse options that are too small.

    Raises:
        BadConfig: An option is less than ``least``.
    """
    for name, value in options.items():
        if value < least:
            raise BadConfig(f"The model's {name} is {value}.", hint=f"Give {least} or more.")


def share(**options: float) -> None:
    """Refuse options that are not a dropout probability.

    Raises:
        BadConfig: An option is not in 0 ≤ p < 1.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise BadConfig(f"The model's {name} is {value:g}.", hint="Give a number from 0 to less than 1.")
