"""Bounds that a field declares with ``Annotated``: for a number, a length, or the characters of a string.

:mod:`ddp_trainer.net.strict_json` enforces them on data from a network. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


class OutOfBounds(ValueError):
    """A value outside the declared bounds."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest allowed number, or length of a string, tuple or dict; both are included."""

    least: float
    most: float

    def check(self, value: Any) -> None:
        """Raise OutOfBounds for a value outside of the bounds. None, the value of an optional field, passes."""
        if value is None:
            return
        size = value if isinstance(value, (int, float)) else len(value)
        if not self.least <= size <= self.most:
            raise OutOfBounds(f"{str(value)[:40]!r} is not within {self.least:g} to {self.most:g}")


@dataclass(frozen=True, slots=True)
class Matching:
    """Regular expression that a whole string must match."""

    pattern: str

    def check(self, value: Any) -> None:
        """Raise OutOfBounds for a string that does not match. None passes."""
        if value is not None and not re.fullmatch(self.pattern, value):
            raise OutOfBounds(f"{str(value)[:40]!r} does not match {self.pattern}")
