"""Choose the state that a new worker group resumes from: a rank's state in memory, a checkpoint, or none.

A rank holds a state if it survived the previous group. :func:`find_state` selects the furthest state, which includes
every committed step, because a step is committed by all ranks or by none. If the result of the last vote reached only
some ranks, these are one step ahead. The same holds for an evaluation whose result reached only some ranks: either all
ranks evaluate next or none does. A rank that is behind or new receives the state from the lowest rank that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ddp_trainer.train.checkpoint.checkpoint_broadcast import Receive, broadcast_latest_checkpoint, from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.distributed.group import Group

_NOTHING: Final = -1


class ResumeSource(NamedTuple):
    """State that a rank resumes from."""

    checkpoint: Checkpoint | None
    """State to load; None if this rank already holds it, or no rank has any."""
    is_durable: bool = False
    """True if the state is on a disk."""


def progress_key(step: int, *, is_evaluated: bool = False) -> int:
    """Return a number that grows with every step, and with an evaluation after it.

    >>> sorted([progress_key(7), progress_key(6, is_evaluated=True), progress_key(6)])
    [12, 13, 14]
    """
    return 2 * step + is_evaluated


def find_state(
    group: Group,
    held: int | None,
    *,
    own: Callable[[], Checkpoint],
    receive: Receive,
    newest: Callable[[], Checkpoint | None],
    demand: Callable[[Manifest], None],
) -> ResumeSource:
    """Agree on the state to resume from and receive it; every rank must call it.

    Args:
        group: The ranks.
        held: :func:`progress_key` of the state that this rank holds; None if it holds none.
        own: Returns that state; called on one rank if others lack it.
        receive: How this rank receives a state that it does not hold.
        newest: Returns the newest checkpoint that this rank sees; called only if no rank holds a state.
        demand: Raises to refuse the state of another run.
    """
    all_held = group.gather(_NOTHING if held is None else held)
    furthest = max(all_held)
    if furthest == _NOTHING:
        found = broadcast_latest_checkpoint(newest(), group, demand, receive)
        return ResumeSource(None if found is None else found.checkpoint, is_durable=True)
    if min(all_held) == furthest:
        return ResumeSource(None)
    source = all_held.index(furthest)
    lacks = receive._replace(is_wanted=receive.is_wanted and held != furthest)
    checkpoint = from_rank(source, own() if group.rank == source else None, group, demand, lacks)
    return ResumeSource(None if held == furthest else checkpoint)
