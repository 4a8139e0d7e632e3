"""Interval between checkpoints that minimizes the time lost to saves and failures.

With failures ``M`` seconds apart on average and ``C`` seconds of training lost to each save, the interval is about
``sqrt(2 C M)``: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974; J. T. Daly,
"A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 2006, from which the term ``- C``
is taken too.
"""

from __future__ import annotations

import math
from typing import Final

_HOUR: Final = 3600.0
_TABLE: Final = {"an hour": _HOUR, "in 6 hours": 6 * _HOUR, "a day": 24 * _HOUR, "a week": 168 * _HOUR}


def best_interval(cost_seconds: float, mtbf_seconds: float) -> float:
    """Return the interval between saves that loses least time, in seconds.

    Args:
        cost_seconds: Training time that one save costs, in seconds.
        mtbf_seconds: Mean time between failures, in seconds.

    >>> round(best_interval(0.05, 3600))
    19
    """
    if cost_seconds >= mtbf_seconds / 2:
        return mtbf_seconds
    return math.sqrt(2 * cost_seconds * mtbf_seconds) - cost_seconds


def suggest_interval(cost_seconds: float, mtbf_seconds: float | None) -> str:
    """Return a sentence with a value for ``--checkpoint-seconds``, or several if the failure rate is unknown."""
    costs = f"A save costs {cost_seconds * 1000:.3g} ms of training. Least is lost"
    if mtbf_seconds is not None:
        return f"{costs} with --checkpoint-seconds {best_interval(cost_seconds, mtbf_seconds):.3g} (Young, Daly)."
    table = ", ".join(f"{best_interval(cost_seconds, mtbf):.3g} for one {name}" for name, mtbf in _TABLE.items())
    return f"{costs} with --checkpoint-seconds, by how often something fails: {table} (Young, Daly)."
