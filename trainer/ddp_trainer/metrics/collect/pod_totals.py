"""What the ranks of a pod have come to together.

A board may be replaced, left out for a while, or go to another rank; the sum over the boards that are there would then
fall, and Prometheus takes a counter that falls for one that began anew: an hour of growth in one moment. So growth is
added up, board by board, and what was there when the exporter began counts as nothing: an exporter that is started
again begins at 0, as its counters should.
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
"""Key of a rank's series → key of the pod's."""


class PodSums:
    """Counters of a pod that grow as those of its ranks do."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(SUMS.values(), 0.0)
        self._seen: dict[int, dict[str, float]] | None = None
        """By local rank, what its board said last; None before the first look."""

    def values(self, slots: Iterable[Slot]) -> dict[str, float]:
        """The sums after a look at these boards, by the key of the series."""
        is_first, seen = self._seen is None, self._seen or {}
        for slot in slots:
            told = {own: slot.board.values[own] for own in SUMS}
            before = seen.get(slot.local_rank, told if is_first else {})
            for own, pod in SUMS.items():
                self._sums[pod] += grown(before.get(own, 0.0), told[own])
            seen[slot.local_rank] = told
        self._seen = seen
        return dict(self._sums)


def grown(before: float, now: float) -> float:
    """By how much a counter has grown; one that fell began anew.

    >>> grown(2.0, 5.0), grown(5.0, 2.0)
    (3.0, 2.0)
    """
    return now - before if now >= before else now
