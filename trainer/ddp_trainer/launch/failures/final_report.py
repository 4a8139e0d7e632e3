"""The launcher's last lines: where a rank of another pod failed, how often the run was formed anew, what ended it."""

from __future__ import annotations

from collections.abc import Mapping

from ddp_trainer.common.constants import FailureReason
from ddp_trainer.launch.failures import failure_reason
from ddp_trainer.launch.protocol.actions import Finish
from ddp_trainer.launch.protocol.messages import Failure


def lines(finish: Finish, *, restarts: Mapping[str, int], own_stack_shown: bool, own_node: str) -> list[str]:
    """In order. A stack that a worker of this node has printed itself is not shown again."""
    told = []
    failure = finish.failure
    is_hang = failure is not None and failure.reason == FailureReason.HANG  # which no worker can print the stack of
    if failure and failure.stack and (is_hang or not (own_stack_shown and failure.node == own_node)):
        told += [f"rank {failure.rank} | {line}" for line in failure.stack.rstrip().splitlines()]
    told.append(f"Restarts by cause: {by_cause(restarts)}.")
    return [*told, *filter(None, [sentence(finish)])]


def sentence(finish: Finish) -> str:
    """Who failed first, of what, and what becomes of it; empty when all is well."""
    parts = [_of_failure(finish.failure)] if finish.failure else []
    return " ".join(part for part in [*parts, finish.sentence] if part)


def by_cause(restarts: Mapping[str, int]) -> str:
    """Counts in words, the most frequent first.

    >>> by_cause({"membership": 1, "failure": 3}), by_cause({})
    ('failure 3, membership 1', 'none')
    """
    ranked = sorted(restarts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{cause} {count}" for cause, count in ranked if count) or "none"


def _of_failure(failure: Failure) -> str:
    if failure.reason == FailureReason.HANG:
        return f"{failure.message}, and was killed for it."
    first_line = failure.message.partition("\n")[0].rstrip(".")
    host = f" ({failure.host})" if failure.host and not failure.node.startswith(failure.host) else ""
    place = f" ({failure.place})" if failure.place else ""
    who = f"Rank {failure.rank}{place} on {failure.node}{host}"
    if failure.reason == FailureReason.EARLY_EXIT:
        return f"{who} {first_line}."
    how = failure_reason.sentence_of(failure.exit_code)
    what = how if first_line == how else f"{how}: {first_line}"
    hint = " (out of memory)" if failure.reason == FailureReason.HOST_OOM else ""
    return f"{who} failed first, it {what}{hint}."
