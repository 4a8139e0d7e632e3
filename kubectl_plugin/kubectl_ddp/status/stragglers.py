"""Detection of slow ranks, by the rule of the alert DdpStraggler.

In data-parallel training, all ranks wait in the collectives for the slowest one, so the duration of a step is the same
on every rank. The time in which a rank is busy differs. Each rank reports it, so the comparison needs no collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final

from kubectl_ddp.status.rank_status import RankActivity, RankState

RATIO: Final = 1.15
"""Multiple of the median above which a rank is too slow: the alert's threshold."""
FEWEST: Final = 3
"""Minimum number of ranks. With two ranks, the slow one cannot be identified by the median."""


def slowdown_by_rank(ranks: Iterable[RankState]) -> Mapping[int, float]:
    """Return the ratio of each rank's busy time to the median; empty with too few ranks.

    >>> def busy(rank: int, seconds: float) -> RankState:
    ...     return RankState(rank=rank, local_rank=0, pod="p", node="n", state=RankActivity.UP, step=1,
    ...                      samples_per_second=1.0, seconds_per_step=1.0, busy_seconds=seconds)
    >>> slowdown_by_rank([busy(0, 0.2), busy(1, 0.2), busy(2, 0.7)])
    {0: 1.0, 1: 1.0, 2: 3.5}
    >>> slowdown_by_rank([busy(0, 0.2), busy(1, 0.7)])
    {}
    """
    told = {one.rank: one.busy_seconds for one in ranks if one.busy_seconds and one.state is not RankActivity.DOWN}
    if len(told) < FEWEST:
        return {}
    middle = median(told.values())
    return {rank: round(seconds / middle, 9) for rank, seconds in told.items()}


def stragglers(slow: Mapping[int, float]) -> tuple[int, ...]:
    """Return the ranks that are too slow, the slowest first.

    >>> stragglers({0: 1.0, 1: 1.16, 2: 3.5, 3: 1.15})
    (2, 1)
    """
    return tuple(sorted((rank for rank, ratio in slow.items() if ratio > RATIO), key=lambda rank: -slow[rank]))
