"""Sentences for those who wait: who is there, who is missing, and until when."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ddp_trainer.launch.protocol.messages import Waiting

WRONG_SECRET: Final = "what listens there has another secret than this node; give all nodes the run's"  # noqa: S105 - words

SILENT_SECONDS: Final = 5.0
"""So long a store that cannot be reached is not worth a word: pods and their names come up one by one."""


def sentence(waiting: Waiting, least: int, patience: str) -> str:
    """What a node that has joined is told while no group forms; ``patience`` says for how long."""
    if waiting.namesake:
        return waiting.namesake
    if waiting.spare:
        return (
            f"{_nodes(waiting.nodes)} ready, the group is full, waiting as a spare; if this is another job, give it "
            "an --rdzv-id and an endpoint of its own."
        )
    if waiting.nodes >= least:
        return f"{_nodes(waiting.nodes)} ready, waiting for a group"
    return f"{who_is_there(waiting)}, waiting for a group of at least {least}. {patience}"


def who_is_there(waiting: Waiting) -> str:
    """Who is ready, and who is not.

    >>> who_is_there(Waiting(nodes=1, spare=False, names=("w-0",), missing=("w-1", "w-2"), missing_count=3))
    '1 node ready (w-0), missing: w-1, w-2 and 1 more'
    """
    names = f" ({_some(waiting.names, waiting.nodes)})" if waiting.names else ""
    missing = f", missing: {_some(waiting.missing, waiting.missing_count)}" if waiting.missing else ""
    return f"{_nodes(waiting.nodes)} ready{names}{missing}"


def gives_up(seconds: float, now: float) -> str:
    """Until when; ``now`` in seconds since the epoch."""
    when = time.strftime("%H:%M:%S", time.localtime(now + max(0.0, seconds)))
    return f"Gives up at {when}, in {max(0.0, seconds):.0f} s."


def unreachable(endpoint: str, seconds: float, trouble: str) -> str:
    """Why a node gives up that never found its store, or lost it."""
    why = f": {trouble}" if trouble else ""
    return f"The store at {endpoint} could not be reached for {seconds:g} s{why}; is its pod running?"


def too_few(endpoint: str, seconds: float, waiting: Waiting | None, least: int) -> str:
    """Why a node gives up whose store forms no group."""
    there = f", {who_is_there(waiting)}" if waiting else ""
    return (
        f"No group of at least {least} nodes was formed at {endpoint} within {seconds:g} s{there}; "
        "raise --rdzv-conf join_timeout if pods take longer to start."
    )


def _nodes(count: int) -> str:
    return f"{count} {'node' if count == 1 else 'nodes'}"


def _some(names: Sequence[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
