"""What the ranks of a group go on from when it begins: what some of them hold, what a disk holds, or nothing.

A rank may hold a state because it has outlived the group before. The furthest one counts: all that was committed is in
it, since a step is committed by all ranks or by none, and where the verdict of the last vote has reached only some of
them, these are one step ahead. Whoever is behind, or has come anew, gets it from the lowest rank that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ddp_trainer.train.checkpoint import Checkpoint
from ddp_trainer.train.exchange import from_rank, newest_of_all
from ddp_trainer.train.group import Group
from ddp_trainer.train.manifest import Manifest

_NOTHING: Final = -1


class Origin(NamedTuple):
    """What a rank goes on from."""

    checkpoint: Checkpoint | None
    """The state that it has to take; None where it holds that state, or nobody has any."""
    is_durable: bool = False
    """It lies on a disk."""


def find_state(
    group: Group,
    held: int | None,
    *,
    copy: Callable[[], Checkpoint],
    newest: Callable[[], Checkpoint | None],
    demand: Callable[[Manifest], None],
) -> Origin:
    """Agree on the state to go on from, and get it; every rank must call it.

    Args:
        group: the ranks.
        held: committed steps of the state that this rank holds; None where it holds none.
        copy: that state, asked of one rank where others lack it.
        newest: the newest checkpoint that this rank sees, asked only where no rank holds anything.
        demand: refuses, by raising, the state of another run.
    """
    steps = group.gather(_NOTHING if held is None else held)
    furthest = max(steps)
    if furthest == _NOTHING:
        found = newest_of_all(newest(), group, demand)
        return Origin(None if found is None else found.checkpoint, is_durable=True)
    if min(steps) == furthest:
        return Origin(None)
    source = steps.index(furthest)
    checkpoint = from_rank(source, copy() if group.rank == source else None, group, demand)
    return Origin(None if held == furthest else checkpoint)
