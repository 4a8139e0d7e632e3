"""Pairs of nodes for each round, the nodes that the results point to, and their output. Standard library only.

A slow node slows down every group that contains it, so one measurement of all nodes does not identify it. Measurements
of two nodes do: the bad node does badly with every partner, while its partners do well with others. NVRx, NVSentinel
and dlrover locate nodes in the same way.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from ddp_collectives.flags import SLOWER, format_size
from ddp_collectives.report import format_bandwidth, to_json

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
    for kind in ([pairing for pairing in pairings if (pairing.round == ALONE) is alone] for alone in (True, False)):
        speeds = [pairing.bus_bytes_per_second for pairing in kind if pairing.bus_bytes_per_second is not None]
        floor = slow_share * _upper_quartile(speeds)
        for pairing in kind:
            speed = pairing.bus_bytes_per_second
            found[pairing] = "failed" if speed is None else "slow" if speed < floor else "good"
    return found


def _upper_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4, method="inclusive")[2] if len(values) > 1 else sum(values)


def find_suspects(pairings: Sequence[PairResult], slow_share: float) -> list[Suspect]:
    """Return the nodes and paths that explain the bad results, the certain ones first."""
    found = classify_pairs(pairings, slow_share)
    bad = [pairing for pairing in pairings if found[pairing] != "good"]
    together = [pairing for pairing in pairings if pairing.round != ALONE]
    fine = {node for pairing in together if found[pairing] == "good" for node in pairing.nodes}
    guilty = {node for pairing in bad if pairing.round == ALONE for node in pairing.nodes}
    for node in sorted({node for pairing in bad for node in pairing.nodes} - guilty - fine):
        partners = {other for pairing in together if node in pairing.nodes for other in pairing.nodes if other != node}
        if len(partners) > 1 and partners & fine:
            guilty.add(node)
    suspects = [_of((node,), [pairing for pairing in bad if node in pairing.nodes], found) for node in sorted(guilty)]
    rest = [pairing for pairing in bad if not guilty.intersection(pairing.nodes)]
    paths = [pairing for pairing in rest if fine.issuperset(pairing.nodes)]
    suspects += [_of(pairing.nodes, [pairing], found) for pairing in paths]
    unclear = [pairing for pairing in rest if pairing not in paths]
    nodes = tuple(sorted({node for pairing in unclear for node in pairing.nodes} - fine))
    return [*suspects, *([_of(nodes, unclear, found, is_sure=False)] if nodes else [])]


def _of(
    nodes: tuple[int, ...], of: Sequence[PairResult], found: Mapping[PairResult, str], *, is_sure: bool = True
) -> Suspect:
    return Suspect(nodes=nodes, is_sure=is_sure, has_failed=any(found[pairing] == "failed" for pairing in of))


def header(names: Mapping[int, str], backend: str, size_bytes: int) -> str:
    """Return the first lines of the table."""
    what = f"{len(names)} nodes, {backend}; all_reduce of {format_size(size_bytes)} between two nodes at a time"
    return f"{what}\nROUND  {'NODES':<{_width(names)}}      BUSBW  RESULT"


def rows(pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float) -> list[str]:
    """Return one line per pairing."""
    found, width = classify_pairs(pairings, slow_share), _width(names)
    lines = []
    for pairing in pairings:
        nodes = ", ".join(names[node] for node in pairing.nodes)
        speed = "-" if pairing.bus_bytes_per_second is None else format_bandwidth(pairing.bus_bytes_per_second)
        verdict = f"{found[pairing]}: {pairing.error}" if pairing.error else found[pairing]
        lines.append(
            f"{'alone' if pairing.round == ALONE else pairing.round:<5}  {nodes:<{width}}  {speed:>9}  {verdict}"
        )
    return lines


def outcome(pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float) -> tuple[int, str]:
    """Return the exit code and a sentence that names the bad nodes; 0 and an empty text if there are none."""
    found = find_suspects(pairings, slow_share)
    if not found:
        return 0, ""
    code = 1 if any(suspect.has_failed for suspect in found) else SLOWER
    return code, " ".join(_suspicion_message(suspect, names) for suspect in found)


def pairings_to_json(
    metadata: Mapping[str, Any], pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float
) -> str:
    """Return the whole run as JSON."""
    found = classify_pairs(pairings, slow_share)
    return to_json(
        "Pairs",
        metadata,
        nodes=[{"node": node, "name": name} for node, name in sorted(names.items())],
        pairings=[{**asdict(pairing), "verdict": found[pairing]} for pairing in pairings],
        suspicions=[asdict(suspect) for suspect in find_suspects(pairings, slow_share)],
    )


def _suspicion_message(suspicion: Suspect, names: Mapping[int, str]) -> str:
    how = "fails" if suspicion.has_failed else "is slow"
    nodes = " and ".join(names[node] for node in suspicion.nodes)
    if len(suspicion.nodes) == 1 and suspicion.is_sure:
        return f"Node {nodes} {how} with every partner, and they do well without it: take it out."
    if suspicion.is_sure:
        return f"Only the path between {nodes} {how}: look at the switches and cables between them."
    fate = "fail" if suspicion.has_failed else "are slow"
    return f"{nodes} {fate} together, and the faulty one is unknown: measure with more nodes or rounds."


def _width(names: Mapping[int, str]) -> int:
    return 2 * max(map(len, names.values())) + 2
