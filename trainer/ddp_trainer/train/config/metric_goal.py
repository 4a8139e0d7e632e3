"""What counts as better: the metric by which the best state is kept and an early end is decided."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_SMALLER_IS_BETTER: Final = ("loss", "error", "perplexity")


@dataclass(frozen=True, slots=True)
class Goal:
    """A metric of the test samples, and the way it should go."""

    metric: str

    @property
    def smaller_is_better(self) -> bool:
        """Of losses, errors and perplexities; of all else, more is better."""
        return any(word in self.metric for word in _SMALLER_IS_BETTER)

    def is_better(self, value: float, best: float | None) -> bool:
        """Whether ``value`` beats the best so far; what is not a number beats nothing.

        >>> Goal("loss").is_better(0.1, 0.2), Goal("accuracy").is_better(0.1, 0.2)
        (True, False)
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best if self.smaller_is_better else value > best
