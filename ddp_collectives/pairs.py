"""Measurement of two nodes at a time for ``ddp-launch collectives --pairs N``.

Each pair has its own process group, so a bad node affects no other pair. Ranks exchange results through the store
alone. A rank without a result within its time counts as failed, and the others continue with the next round.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
import torch.distributed as dist

from ddp_collectives import pair_analysis
from ddp_collectives.flags import BadRequest, CollectivesError
from ddp_collectives.operations import ELEMENT_BYTES, OPERATIONS
from ddp_collectives.pair_analysis import ALONE, PairResult, round_robin_pairs
from ddp_collectives.rank import POLL_SECONDS, Rank, first_line
from ddp_collectives.report import max_rank_times
from ddp_trainer.process.group_names import restart_group_names

MESSAGE_BYTES: Final = {"gloo": 4 << 20, "nccl": 256 << 20}
"""Size of the all-reduce in bytes, unless ``--sizes`` sets another."""
_MARGIN_SECONDS: Final = 2.0
"""Seconds for the work of a rank besides waiting for its peers."""

RankResult = Mapping[str, Any]
"""Its ``times``, or its ``error``."""


def find_bad_nodes(own: Rank) -> tuple[int, str]:
    """Measure all pairs, and print them on rank 0. Returns exit code and sentence.

    Raises:
        BadRequest: All ranks are on one node.
        CollectivesError: Some ranks did not come, or rank 0 does not end a round in time.
    """
    # A failed NCCL collective raises where it is waited for, instead of ending the process. Not tested on GPUs.
    os.environ |= {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    size_bytes = _message_bytes(own)
    places = own.exchange_places()
    names = {int(place["node"]): f"{place['node']} ({place['host']})" for place in places}
    if len(names) < 2:
        raise BadRequest("--pairs needs two nodes or more, and all ranks are on one; leave it out.")
    is_table = own.request.output == "table"
    if own.rank == 0 and is_table:
        print(pair_analysis.header(names, own.backend, size_bytes), flush=True)
    results = _measure_rounds(own, places)
    slow_share = own.request.slow_below
    if own.rank == 0:
        table = "\n".join(pair_analysis.rows(results, names, slow_share))
        document = pair_analysis.pairings_to_json(own.metadata(places), results, names, slow_share)
        print(table if is_table else document, flush=True)
    return own.share_outcome(pair_analysis.outcome(results, names, slow_share))


def _message_bytes(own: Rank) -> int:
    return max(own.request.sizes) if own.request.sizes else MESSAGE_BYTES[own.backend]


def _measure_rounds(own: Rank, places: Sequence[Mapping[str, Any]]) -> list[PairResult]:
    """Measure all pairings. Returns them on rank 0."""
    nodes = sorted({int(place["node"]) for place in places})
    ranks = {node: [rank for rank, place in enumerate(places) if place["node"] == node] for node in nodes}
    several: list[tuple[int, ...]] = [(node,) for node in nodes if len(ranks[node]) > 1]
    results: list[PairResult] = []
    for number, pairs in enumerate([several, *round_robin_pairs(nodes, own.request.pairs)], start=ALONE):
        members = {pair: [rank for node in pair for rank in ranks[node]] for pair in pairs}
        for pair in pairs:
            if own.node in pair:
                own.store.set(f"pairs/{number}/{own.rank}", json.dumps(_measure_pair(own, number, members[pair])))
        until = time.monotonic() + _pair_timeout(own)
        if own.rank == 0:
            results += [_collect_pair(own, number, pair, members[pair], until) for pair in pairs]
            own.store.set(f"pairs/{number}/over", "0")
        elif own.read(f"pairs/{number}/over", until + 3 * _pair_timeout(own)) is None:
            raise CollectivesError("Rank 0, which collects the results, no longer answers.")
    return results


def _pair_timeout(own: Rank) -> float:
    """Return the seconds that a pair may take to meet and to fail in a collective."""
    return 2 * own.request.pair_timeout + _MARGIN_SECONDS


def _measure_pair(own: Rank, number: int, members: Sequence[int]) -> RankResult:
    own.store.set(f"pairs/{number}/here/{own.rank}", "0")
    until = time.monotonic() + own.request.pair_timeout
    for rank in members:
        if own.read(f"pairs/{number}/here/{rank}", until) is None:
            return {"error": f"rank {rank} did not come within {own.request.pair_timeout} s"}
    message = torch.ones(_message_bytes(own) // ELEMENT_BYTES, dtype=torch.float32, device=own.device)
    try:
        own.init_process_group(f"pairs/group/{number}/{members[0]}", members, own.request.pair_timeout)
        return {"times": own.time_calls(lambda: dist.all_reduce(message))}
    except (RuntimeError, ValueError) as error:
        return {"error": first_line(error)}
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        restart_group_names()


def _collect_pair(own: Rank, number: int, pair: tuple[int, ...], members: Sequence[int], until: float) -> PairResult:
    """Return the result of a pair. After one failure, its other ranks have a few more seconds."""
    results: dict[int, RankResult | None] = dict.fromkeys(members)
    while missing := [rank for rank, result in results.items() if result is None]:
        for rank in missing:
            results[rank] = own.read(f"pairs/{number}/{rank}", 0)
            if "error" in (results[rank] or {}):
                until = min(until, time.monotonic() + _MARGIN_SECONDS)
        if time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    errors = [f"rank {rank} does not answer" for rank in missing]
    errors += [f"rank {rank}: {result['error']}" for rank, result in results.items() if result and "error" in result]
    if errors:
        return PairResult(round=number, nodes=pair, error=errors[0])
    seconds = statistics.median(max_rank_times([result["times"] for result in results.values() if result]))
    speed = _message_bytes(own) / seconds * OPERATIONS["all_reduce"].bus_factor(len(members))
    return PairResult(round=number, nodes=pair, bus_bytes_per_second=speed)
