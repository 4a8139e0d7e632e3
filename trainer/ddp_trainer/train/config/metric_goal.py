"""Comparison of evaluation metrics, for keeping the best checkpoint and for early stopping."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_SMALLER_IS_BETTER: Final = ("loss", "error", "perplexity")


@dataclass(frozen=True, slots=True)
class TargetMetric:
    """A metric of the test samples. Losses, errors and perplexities improve downwards, all others upwards."""

    metric: str

    def is_better(self, value: float, best: float | None) -> bool:
        """Return whether ``value`` is better than the best so far. NaN is never better.

        >>> TargetMetric("loss").is_better(0.1, 0.2), TargetMetric("accuracy").is_better(0.1, 0.2)
        (True, False)
        """
        if math.isnan(value):
            return False
        if best is None:
            return True
        return value < best if any(word in self.metric for word in _SMALLER_IS_BETTER) else value > best
