"""Last lines of the launcher: first failure, restarts by cause, and reason of the end.

:func:`lines` returns them for a :class:`~ddp_trainer.launch.protocol.actions.Finish`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.launch.failures import failure_reason
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.messages import Failure


def lines(finish: Finish, *, restarts: Mapping[str, int], own_stack_shown: bool, own_node: str) -> list[str]:
    """Return the last lines of the launcher, in order.

    The stack of a failure is included unless a worker of this node has printed it. No worker can print the stack of a
    hang.

    Args:
        finish: Last action of the agent.
        restarts: Number of restarts by cause.
        own_stack_shown: Whether a worker of this node has printed its stack.
        own_node: Name of this node.
    """
    told = []
    failure = finish.failure
    is_hang = failure is not None and failure.reason == FailureReason.HANG
    if failure and failure.stack and (is_hang or not (own_stack_shown and failure.node == own_node)):
        told += [f"rank {failure.rank} | {line}" for line in failure.stack.rstrip().splitlines()]
    told.append(f"Restarts by cause: {by_cause(restarts)}.")
    return [*told, *filter(None, [final_message(finish)])]


def final_message(finish: Finish) -> str:
    """Describe the first failure and the end of the run; empty if there is nothing to report."""
    parts = [describe_failure(finish.failure)] if finish.failure else []
    return " ".join(part for part in [*parts, finish.message] if part)


def by_cause(restarts: Mapping[str, int]) -> str:
    """Format counts by cause, the most frequent first.

    >>> by_cause({"membership": 1, "failure": 3}), by_cause({})
    ('failure 3, membership 1', 'none')
    """
    ranked = sorted(restarts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in ranked if count) or "none"


def describe_failure(failure: Failure) -> str:
    """Describe in one sentence which worker failed first, and how."""
    if failure.reason == FailureReason.LAUNCHER_CRASH:
        return f"{failure.message}, on {failure.node}."
    if failure.reason == FailureReason.HANG:
        return f"{failure.message}, and was killed for it."
    first_line = failure.message.partition("\n")[0].rstrip(".")
    host = f" ({failure.host})" if failure.host and not failure.node.startswith(failure.host) else ""
    place = f" ({failure.place})" if failure.place else ""
    who = f"Rank {failure.rank}{place} on {failure.node}{host}"
    if failure.reason == FailureReason.EARLY_EXIT:
        return f"{who} {first_line}."
    how = failure_reason.describe_exit_code(failure.exit_code)
    what = first_line if first_line.startswith(how) else f"{how}: {first_line}"
    hint = " (out of memory)" if failure.reason == FailureReason.HOST_OOM else ""
    return f"{who} failed first, it {what}{hint}."
