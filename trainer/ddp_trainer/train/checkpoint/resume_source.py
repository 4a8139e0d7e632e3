"""What the ranks of a group go on from when it begins: what some of them hold, what a disk holds, or nothing.

A rank may hold a state because it has outlived the group before. The furthest one counts: all that was committed is in
it, since a step is committed by all ranks or by none, and where the verdict of the last vote has reached only some of
them, these are one step ahead. So it is with an evaluation, whose result only some may have got: all ranks evaluate
next, or none does. Whoever is behind, or has come anew, gets the state from the lowest rank that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ddp_trainer.train.checkpoint.checkpoint_broadcast import from_rank, newest_of_all
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.distributed.group import Group

_NOTHING: Final = -1


class ResumeSource(NamedTuple):
    """What a rank goes on from."""

    checkpoint: Checkpoint | None
    """The state that it has to take; None where it holds that state, or nobody has any."""
    is_durable: bool = False
    """It lies on a disk."""


def progress_key(step: int, *, is_evaluated: bool = False) -> int:
    """How far a state is: it grows with every step, and with an evaluation after it.

    >>> sorted([progress_key(7), progress_key(6, is_evaluated=True), progress_key(6)])
    [12, 13, 14]
    """
    return 2 * step + is_evaluated


def find_state(
    group: Group,
    held: int | None,
    *,
    copy: Callable[[], Checkpoint],
    newest: Callable[[], Checkpoint | None],
    demand: Callable[[Manifest], None],
) -> ResumeSource:
    """Agree on the state to go on from, and get it; every rank must call it.

    Args:
        group: the ranks.
        held: how far the state is that this rank holds, as :func:`progress_key` says; None where it holds none.
        copy: that state, asked of one rank where others lack it.
        newest: the newest checkpoint that this rank sees, asked only where no rank holds anything.
        demand: refuses, by raising, the state of another run.
    """
    all_held = group.gather(_NOTHING if held is None else held)
    furthest = max(all_held)
    if furthest == _NOTHING:
        found = newest_of_all(newest(), group, demand)
        return ResumeSource(None if found is None else found.checkpoint, is_durable=True)
    if min(all_held) == furthest:
        return ResumeSource(None)
    source = all_held.index(furthest)
    checkpoint = from_rank(source, copy() if group.rank == source else None, group, demand)
    return ResumeSource(None if held == furthest else checkpoint)
