"""Measurement of two nodes at a time for ``ddp-launch collectives --pairs N``.

Each pair has its own process group, so a bad node affects no other pair. Ranks exchange results through the store
alone. A rank without a result within its time counts as failed, and the others continue with the next round.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
import torch.distributed as dist

from ddp_collectives import bandwidth
from ddp_collectives.errors import CommunicationFailed, first_line
from ddp_collectives.measure import max_rank_times
from ddp_collectives.pair_analysis import ALONE, PairResult, round_robin_pairs
from ddp_collectives.rank import Rank
from ddp_trainer.process.group_names import restart_group_names

MESSAGE_BYTES: Final = {"gloo": 4 << 20, "nccl": 256 << 20}
"""Size of the all-reduce in bytes, unless ``--sizes`` sets another."""
_POLL_SECONDS: Final = 0.02
_MARGIN_SECONDS: Final = 2.0
"""Seconds for the work of a rank besides waiting for its peers."""


def message_bytes(own: Rank) -> int:
    """Return the size of the message in bytes."""
    return max(own.request.sizes_of(own.backend)) if own.request.sizes else MESSAGE_BYTES[own.backend]


def exchange_rank_info(own: Rank) -> Mapping[int, Mapping[str, Any]]:
    """Return node and host of all ranks, by rank.

    Raises:
        CommunicationFailed: Some ranks did not come; the message names them.
    """
    told = {"node": own.node, "host": platform.node()}
    own.store.set(f"pairs/rank/{own.rank}", json.dumps(told))
    until = time.monotonic() + own.request.timeout_seconds
    found = {rank: _read(own.store, f"pairs/rank/{rank}", until) for rank in range(own.world)}
    missing = [rank for rank, each in found.items() if each is None]
    if missing:
        raise CommunicationFailed(
            f"Ranks {', '.join(map(str, missing))} did not come within {own.request.timeout_seconds:g} s."
        )
    return {rank: each for rank, each in found.items() if each is not None}


def measure_pairs(own: Rank, places: Mapping[int, Mapping[str, Any]]) -> list[PairResult] | None:
    """Measure all pairings. Returns them on rank 0, and None on the other ranks.

    Raises:
        CommunicationFailed: Rank 0 does not end a round in time.
    """
    nodes = sorted({int(place["node"]) for place in places.values()})
    ranks_of = {node: [rank for rank, place in places.items() if place["node"] == node] for node in nodes}
    several: list[tuple[int, ...]] = [(node,) for node in nodes if len(ranks_of[node]) > 1]
    found: list[PairResult] = []
    for number, pairs in enumerate([several, *round_robin_pairs(nodes, own.request.pairs)], start=ALONE):
        mine = next((pair for pair in pairs if own.node in pair), None)
        if mine is not None:
            told = _measure_pair(own, number, [rank for node in mine for rank in ranks_of[node]])
            own.store.set(f"pairs/{number}/{own.rank}", json.dumps(told))
        if own.rank == 0:
            found += _collect_results(own, number, pairs, ranks_of)
            own.store.set(f"pairs/{number}/over", "")
        elif _read(own.store, f"pairs/{number}/over", time.monotonic() + 4 * _pair_timeout(own)) is None:
            raise CommunicationFailed("Rank 0, which collects the results, no longer answers.")
    return found if own.rank == 0 else None


def _pair_timeout(own: Rank) -> float:
    """Return the seconds that a pair may take to meet and to fail in a collective."""
    return 2 * own.request.pair_timeout_seconds + _MARGIN_SECONDS


def _measure_pair(own: Rank, number: int, members: Sequence[int]) -> Mapping[str, Any]:
    """Return the times of all repeats, or the error."""
    if absent := _absent(own, number, members):
        return {"error": f"rank {absent[0]} did not come within {own.request.pair_timeout_seconds:g} s"}
    try:
        own.init_process_group(f"pairs/group/{number}/{members[0]}", members, own.request.pair_timeout_seconds)
        return {"times": _times(own, len(members))}
    except (RuntimeError, ValueError) as error:
        return {"error": first_line(error)}
    finally:
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        restart_group_names()


def _absent(own: Rank, number: int, members: Sequence[int]) -> list[int]:
    """Return the members that do not come. Waiting in torch would print four lines to stderr."""
    own.store.set(f"pairs/{number}/here/{own.rank}", "")
    until = time.monotonic() + own.request.pair_timeout_seconds
    return [rank for rank in members if _read(own.store, f"pairs/{number}/here/{rank}", until) is None]


def _times(own: Rank, world: int) -> list[float]:
    count = message_bytes(own) // 4
    message = torch.ones(count, dtype=torch.float32, device=own.device)
    times: list[float] = []
    for repeat in range(own.request.warmup + own.request.repeats):
        message.fill_(1)
        dist.barrier()
        seconds = own.timer(lambda: dist.all_reduce(message))
        if not bool((message == world).all()):
            raise RuntimeError("the sum of the all-reduce is wrong")
        times += [seconds] if repeat >= own.request.warmup else []
    return times


def _collect_results(
    own: Rank, number: int, pairs: Sequence[tuple[int, ...]], ranks_of: Mapping[int, Sequence[int]]
) -> list[PairResult]:
    until = time.monotonic() + _pair_timeout(own)
    found = []
    for pair in pairs:
        members = [rank for node in pair for rank in ranks_of[node]]
        found.append(_pair_result(own, number, pair, _receive_results(own, number, members, until)))
    return found


def _receive_results(
    own: Rank, number: int, members: Sequence[int], until: float
) -> dict[int, Mapping[str, Any] | None]:
    """Return each member's result until the deadline. After one failure, the others have a few more seconds."""
    told: dict[int, Mapping[str, Any] | None] = dict.fromkeys(members)
    while missing := [rank for rank, each in told.items() if each is None]:
        for rank in missing:
            told[rank] = _read(own.store, f"pairs/{number}/{rank}", 0)
            if "error" in (told[rank] or {}):
                until = min(until, time.monotonic() + _MARGIN_SECONDS)
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_SECONDS)
    return told


def _pair_result(
    own: Rank, number: int, pair: tuple[int, ...], told: Mapping[int, Mapping[str, Any] | None]
) -> PairResult:
    errors = [f"rank {rank} says nothing" for rank, each in told.items() if each is None]
    errors += [f"rank {rank}: {each['error']}" for rank, each in told.items() if each and "error" in each]
    if errors:
        return PairResult(round=number, nodes=pair, error=errors[0])
    seconds = statistics.median(max_rank_times(each for each in told.values() if each))
    speed = message_bytes(own) / seconds * bandwidth.all_reduce_factor(len(told))
    return PairResult(round=number, nodes=pair, bus_bytes_per_second=speed)


def _read(store: Any, key: str, until: float) -> Mapping[str, Any] | None:
    """Return the value of a key; None if it is not set in time.

    It polls, because torch's store prints four lines to stderr for every wait that times out.
    """
    try:
        while not store.check([key]):
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_SECONDS)
        text = store.get(key)
    except RuntimeError:
        return None
    return dict(json.loads(text)) if text else {}


def make_failures_raise() -> None:
    """Make a failed NCCL collective raise where it is waited for, instead of ending the process. Not tested on GPUs."""
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
