"""What of a model's blocks is computed again in the backward pass, so that it need not be kept until then.

The trainer's ``--activation-checkpointing``, and of it ``--recompute``: all of each block, all of every N-th block, or
of each block what is cheap, which is all but matrix products and attention, whose results are kept.
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
    """Which blocks, and how much of them."""

    every: int
    """Of so many blocks the last one computes again; 0: none does."""
    is_cheap: bool = False
    """What takes long to compute is kept."""

    @classmethod
    def parse(cls, text: str) -> Recomputation:
        """Read what the trainer's ``--recompute`` takes. Raises UsageError.

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
        """As ``--recompute`` takes it; empty where nothing is computed again.

        >>> [each.flag_value for each in (NOTHING, ALL, CHEAP, Recomputation(3))]
        ['', 'all', 'cheap', '3']
        """
        named = next((name for name, each in _BY_NAME.items() if each == self), None)
        return named or (str(self.every) if self.every else "")

    @property
    def flags(self) -> tuple[str, ...]:
        """What the trainer is told, beside nothing that it takes for granted."""
        return () if not self.every else (FLAG,) if self == ALL else (FLAG, WHAT, self.flag_value)

    def blocks(self, layers: int) -> int:
        """How many of so many there are.

        >>> Recomputation(2).blocks(5), NOTHING.blocks(5)
        (2, 0)
        """
        return layers // self.every if self.every else 0


NOTHING: Final = Recomputation(0)
ALL: Final = Recomputation(1)
CHEAP: Final = Recomputation(1, is_cheap=True)
_BY_NAME: Final = {"all": ALL, "cheap": CHEAP}

TRIED: Final = (NOTHING, CHEAP, Recomputation(2), ALL)
"""What a plan chooses from, from the fastest to the one that takes the least memory."""
