"""Totals of a pod: the growth of its ranks' counters, added up board by board.

The plain sum over all boards falls when a board is replaced, is unreadable for a while, or changes its rank. Prometheus
takes a falling counter for a restarted one, and would count an hour of growth in one moment. :class:`PodCounters`
therefore adds up growth. The values at the start of the exporter count as 0, so a restarted exporter begins at 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ddp_trainer.metrics.families.pod_families import SUMMED, of_pod
from ddp_trainer.metrics.families.registry import FAMILIES
from ddp_trainer.metrics.storage.mmap_directory import Slot

SUMS: Final = {
    own.key: pod.key
    for family in FAMILIES
    if family.name in SUMMED
    for own, pod in zip(family.series(), of_pod(family).series(), strict=True)
}
"""Key of a rank's series → key of the pod's series."""


class PodCounters:
    """Counters of a pod that grow with those of its ranks."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(SUMS.values(), 0.0)
        self._seen: dict[int, dict[str, float]] | None = None
        """Local rank → last values of its board; None before the first reading."""

    def values(self, slots: Iterable[Slot]) -> dict[str, float]:
        """Return the sums after reading these boards, by key of the series."""
        is_first, seen = self._seen is None, self._seen or {}
        for slot in slots:
            told = {own: slot.board.values[own] for own in SUMS}
            before = seen.get(slot.local_rank, told if is_first else {})
            for own, pod in SUMS.items():
                self._sums[pod] += counter_increase(before.get(own, 0.0), told[own])
            seen[slot.local_rank] = told
        self._seen = seen
        return dict(self._sums)


def counter_increase(before: float, now: float) -> float:
    """Return the growth of a counter. A counter that fell has restarted from 0.

    >>> counter_increase(2.0, 5.0), counter_increase(5.0, 2.0)
    (3.0, 2.0)
    """
    return now - before if now >= before else now
