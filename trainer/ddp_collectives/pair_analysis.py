"""Pairs of nodes for each round, and the nodes that the results point to. Pure functions, standard library only.

A slow node slows down every group that contains it, so one measurement of all nodes does not identify it. Measurements
of two nodes do: the bad node does badly with every partner, while its partners do well with others. NVRx, NVSentinel
and dlrover locate nodes in the same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ALONE: Final = 0
"""Round in which each node with several ranks is measured alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """Measurement of two nodes together, or of one alone."""

    round: int
    nodes: tuple[int, ...]
    bus_bytes_per_second: float | None = None
    """Bus bandwidth; None if the measurement failed."""
    error: str = ""
    """Error of the first rank that reported one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """Nodes that the results point to."""

    nodes: tuple[int, ...]
    """One bad node, two nodes with a bad path between them, or several nodes of which at least one is bad."""
    is_sure: bool
    has_failed: bool
    """True if a measurement failed, and was not only slow."""


def round_robin_pairs(nodes: Sequence[int], count: int) -> Iterator[list[tuple[int, ...]]]:
    """Yield the pairs of each round, no pair twice, by the circle method of tournaments.

    >>> list(round_robin_pairs([0, 1, 2], 9))
    [[(1, 2)], [(0, 2)], [(0, 1)]]
    """
    seats: list[int | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
    half = len(seats) // 2
    for _ in range(min(count, len(seats) - 1)):
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(one, other), max(one, other)) for one, other in pairs if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def classify_pairs(pairings: Sequence[PairResult], slow_share: float) -> Mapping[PairResult, str]:
    """Return ``good``, ``slow`` or ``failed`` for each pairing.

    Slow means below ``slow_share`` of the upper quartile of its kind. The quartile is used because one bad node of
    three is in two of three pairs.
    """
    found: dict[PairResult, str] = {}
    for kind in ([each for each in pairings if (each.round == ALONE) is alone] for alone in (True, False)):
        speeds = [each.bus_bytes_per_second for each in kind if each.bus_bytes_per_second is not None]
        floor = slow_share * _upper_quartile(speeds)
        for each in kind:
            speed = each.bus_bytes_per_second
            found[each] = "failed" if speed is None else "slow" if speed < floor else "good"
    return found


def _upper_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else sum(values)


def find_suspects(pairings: Sequence[PairResult], slow_share: float) -> list[Suspect]:
    """Return the nodes and paths that explain the bad results, the certain ones first."""
    found = classify_pairs(pairings, slow_share)
    bad = [each for each in pairings if found[each] != "good"]
    together = [each for each in pairings if each.round != ALONE]
    fine = {node for each in together if found[each] == "good" for node in each.nodes}
    guilty = {node for each in bad if each.round == ALONE for node in each.nodes}
    for node in sorted({node for each in bad for node in each.nodes} - guilty - fine):
        partners = {other for each in together if node in each.nodes for other in each.nodes if other != node}
        if len(partners) > 1 and partners & fine:
            guilty.add(node)
    told = [_of((node,), [each for each in bad if node in each.nodes], found) for node in sorted(guilty)]
    rest = [each for each in bad if not guilty.intersection(each.nodes)]
    paths = [each for each in rest if fine.issuperset(each.nodes)]
    told += [_of(each.nodes, [each], found) for each in paths]
    unclear = [each for each in rest if each not in paths]
    nodes = tuple(sorted({node for each in unclear for node in each.nodes} - fine))
    return [*told, *([_of(nodes, unclear, found, is_sure=False)] if nodes else [])]


def _of(
    nodes: tuple[int, ...], of: Sequence[PairResult], found: Mapping[PairResult, str], *, is_sure: bool = True
) -> Suspect:
    return Suspect(nodes=nodes, is_sure=is_sure, has_failed=any(found[each] == "failed" for each in of))
