"""Sentences for waiting nodes: ready nodes, missing nodes, and the time limit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from ddp_trainer.launch.protocol.messages import Policy, Waiting

WRONG_SECRET: Final = "the server there has another secret than this node; give all nodes the run's"  # noqa: S105 - a message

SILENT_SECONDS: Final = 5.0
"""Time before an unreachable store is reported, in seconds. Pods and their names start one by one."""


def waiting_message(waiting: Waiting, least: int, deadline: str) -> str:
    """Return the message for a node that has joined while no group forms.

    Args:
        waiting: Message of the store.
        least: Smallest number of nodes of a group.
        deadline: Sentence with the end of the wait, such as the one of :func:`deadline_message`.
    """
    if waiting.namesake:
        return waiting.namesake
    if waiting.spare:
        return (
            f"{_nodes(waiting.nodes)} ready, the group is full, waiting as a spare; if this is another job, give it "
            "its own --rdzv-id and endpoint."
        )
    if waiting.nodes >= least:
        return f"{_nodes(waiting.nodes)} ready, waiting for a group"
    return f"{describe_nodes(waiting)}, waiting for a group of at least {least}. {deadline}"


def other_policy_message(own: Policy, run: Policy) -> str:
    """Return the warning for a node that was started with other numbers than the run has.

    Args:
        own: Settings of the node.
        run: Settings of the run, from its first node.
    """
    flags = (
        (f"--nnodes {policy.min_nodes}:{policy.max_nodes}", f"--max-restarts {policy.max_restarts}")
        for policy in (own, run)
    )
    differing = [pair for pair in zip(*flags, strict=True) if pair[0] != pair[1]]
    ours, others = (" ".join(words) for words in zip(*differing, strict=True))
    return f"This node has {ours}, and the run {others} from its first node, which counts; give all nodes the same."


def describe_nodes(waiting: Waiting) -> str:
    """List the ready and the missing nodes.

    >>> describe_nodes(Waiting(nodes=1, spare=False, names=("w-0",), missing=("w-1", "w-2"), missing_count=3))
    '1 node ready (w-0), missing: w-1, w-2 and 1 more'
    """
    names = f" ({_some(waiting.names, waiting.nodes)})" if waiting.names else ""
    missing = f", missing: {_some(waiting.missing, waiting.missing_count)}" if waiting.missing else ""
    return f"{_nodes(waiting.nodes)} ready{names}{missing}"


def deadline_message(seconds: float, now: float) -> str:
    """Return the time at which a node gives up, as a sentence.

    Args:
        seconds: Remaining time, in seconds.
        now: Seconds since the epoch.
    """
    when = time.strftime("%H:%M:%S", time.localtime(now + max(0.0, seconds)))
    return f"Gives up at {when}, in {max(0.0, seconds):.0f} s."


def connect_timeout_message(endpoint: str, seconds: float, trouble: str) -> str:
    """Return the reason why a node gives up that could not reach its store."""
    why = f": {trouble}" if trouble else ""
    return f"The store at {endpoint} could not be reached for {seconds:g} s{why}; is its pod running?"


def join_timeout_message(endpoint: str, seconds: float, waiting: Waiting | None, least: int) -> str:
    """Return the reason why a node gives up whose store forms no group."""
    there = f", {describe_nodes(waiting)}" if waiting else ""
    return (
        f"No group of at least {least} nodes was formed at {endpoint} within {seconds:g} s{there}; "
        "raise --rdzv-conf join_timeout if pods take longer to start."
    )


def _nodes(count: int) -> str:
    return f"{count} {'node' if count == 1 else 'nodes'}"


def _some(names: Sequence[str], count: int) -> str:
    more = count - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
