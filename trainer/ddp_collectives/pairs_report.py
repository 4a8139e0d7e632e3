"""Output of ``--pairs``: a table, sentences that name nodes, and versioned JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ddp_collectives.errors import SLOWER
from ddp_collectives.pair_analysis import ALONE, PairResult, Suspect, classify_pairs, find_suspects
from ddp_collectives.report import format_bandwidth
from ddp_collectives.result import API_VERSION
from ddp_collectives.sizes import show

KIND: Final = "Pairs"


def header(names: Mapping[int, str], backend: str, size_bytes: int) -> str:
    """Return the first lines of the table."""
    what = f"{len(names)} nodes, {backend}; all_reduce of {show(size_bytes)} between two nodes at a time"
    return f"{what}\nROUND  {'NODES':<{_width(names)}}      BUSBW  RESULT"


def rows(pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float) -> list[str]:
    """Return one line per pairing."""
    found, width = classify_pairs(pairings, slow_share), _width(names)
    lines = []
    for each in pairings:
        nodes = ", ".join(names[node] for node in each.nodes)
        speed = "-" if each.bus_bytes_per_second is None else format_bandwidth(each.bus_bytes_per_second)
        told = f"{found[each]}: {each.error}" if each.error else found[each]
        lines.append(f"{'alone' if each.round == ALONE else each.round:<5}  {nodes:<{width}}  {speed:>9}  {told}")
    return lines


def outcome(pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float) -> tuple[int, str]:
    """Return the exit code and a sentence that names the bad nodes; 0 and an empty text if there are none."""
    found = find_suspects(pairings, slow_share)
    if not found:
        return 0, ""
    code = 1 if any(each.has_failed for each in found) else SLOWER
    return code, " ".join(_suspicion_message(each, names) for each in found)


def pairings_to_json(
    about: Mapping[str, Any], pairings: Sequence[PairResult], names: Mapping[int, str], slow_share: float
) -> str:
    """Return the whole run as JSON."""
    found = classify_pairs(pairings, slow_share)
    return json.dumps(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            **about,
            "nodes": [{"node": node, "name": name} for node, name in sorted(names.items())],
            "pairings": [{**asdict(each), "verdict": found[each]} for each in pairings],
            "suspicions": [asdict(each) for each in find_suspects(pairings, slow_share)],
        },
        indent=2,
    )


def _suspicion_message(suspicion: Suspect, names: Mapping[int, str]) -> str:
    how = "fails" if suspicion.has_failed else "is slow"
    told = " and ".join(names[node] for node in suspicion.nodes)
    if len(suspicion.nodes) == 1 and suspicion.is_sure:
        return f"Node {told} {how} with every partner, and they do well without it: take it out."
    if suspicion.is_sure:
        return f"Only the path between {told} {how}: look at the switches and cables between them."
    fate = "fail" if suspicion.has_failed else "are slow"
    return f"{told} {fate} together, and the faulty one is unknown: measure with more nodes or rounds."


def _width(names: Mapping[int, str]) -> int:
    return 2 * max(map(len, names.values())) + 2
