"""Activation recomputation: which parts of a model's blocks are recomputed in the backward pass instead of kept.

It corresponds to the trainer's options ``--activation-checkpointing`` and ``--recompute``: all of each block, all of
every N-th block, or the cheap parts of each block. Cheap is everything but matrix products and attention, whose results
are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError

FLAG: Final = "--activation-checkpointing"
WHAT: Final = "--recompute"
_EVERY: Final = re.compile(r"0*[1-9][0-9]{0,6}")


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Selection of recomputed blocks and of their recomputed parts."""

    every: int
    """Every N-th block is recomputed; 0 for none."""
    is_cheap: bool = False
    """True if the results of expensive operations are kept."""

    @classmethod
    def parse(cls, text: str) -> Recomputation:
        """Parse a value of the trainer's ``--recompute``. Raises UsageError.

        >>> Recomputation.parse("cheap") == CHEAP, Recomputation.parse("2").every
        (True, 2)
        """
        if found := _BY_NAME.get(text):
            return found
        if not _EVERY.fullmatch(text):
            raise UsageError(f"{WHAT} is '{text}'.", hint="Give all, cheap, or N for every N-th block.")
        return cls(int(text))

    @property
    def flag_value(self) -> str:
        """Value for ``--recompute``; empty if nothing is recomputed.

        >>> [each.flag_value for each in (NOTHING, ALL, CHEAP, Recomputation(3))]
        ['', 'all', 'cheap', '3']
        """
        named = next((name for name, each in _BY_NAME.items() if each == self), None)
        return named or (str(self.every) if self.every else "")

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for the trainer, without defaults."""
        return () if not self.every else (FLAG,) if self == ALL else (FLAG, WHAT, self.flag_value)

    def blocks(self, layers: int) -> int:
        """Return the number of recomputed blocks among ``layers``.

        >>> Recomputation(2).blocks(5), NOTHING.blocks(5)
        (2, 0)
        """
        return layers // self.every if self.every else 0


NOTHING: Final = Recomputation(0)
ALL: Final = Recomputation(1)
CHEAP: Final = Recomputation(1, is_cheap=True)
_BY_NAME: Final = {"all": ALL, "cheap": CHEAP}

TRIED: Final = (NOTHING, CHEAP, Recomputation(2), ALL)
"""Options that a plan compares, from the fastest to the one with the least memory."""
