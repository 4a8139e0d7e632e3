"""In-memory recovery of a distributed model from the peers of the previous worker group.

Each replica holds the state once, divided into as many slots as it has ranks. Ranks of different replicas with the same
slot hold the same state. A new rank, or a rank whose slot has changed, therefore receives its slot's state from any
rank that held it. If no surviving rank held some slot, all in-memory state is void, and the group resumes from the
newest checkpoint on disk. The same happens if the layout divides the state into different slots.
:func:`recover_from_peers` is the entry point.

All ranks of a group commit a step, or none does. If a rank is lost during a vote, however, the decision may have
reached only some ranks. A rank that is ahead cannot update the others, because it holds only its own slot. A rank that
voted and did not receive the decision therefore applies the step in advance. It keeps the state from before and after
the step until the new group determines which one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_broadcast import from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.state_transfer import exchange_states
from ddp_trainer.train.distributed.group import Group

if TYPE_CHECKING:
    from ddp_trainer.train.recovery.local_shards import LocalShards

_NOTHING: Final = -1
_KIND_BYTES: Final = 7
"""Bytes of :func:`kind_of`, so that it fits into an int64 and two layouts do not get the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """State that a rank keeps from a group that has ended."""

    step: int
    attained: int
    """Progress as returned by :func:`ddp_trainer.train.checkpoint.resume_source.progress_key`."""
    layout: Layout
    rank: int
    """Rank in the layout of that group."""
    holdings: LocalShards
    """This rank's shards after ``step`` steps."""
    ahead: LocalShards | None
    """Its shards after one more step, for which it voted without receiving the decision; else None."""
    beside: Checkpoint
    """State that every rank holds whole, after ``step`` steps."""
    skipped: int
    """Number of committed steps so far that changed no weight."""

    @property
    def slot(self) -> int:
        """Index of the part of a replica that this rank holds."""
        return self.rank % self.layout.replica


class RecoveredState(NamedTuple):
    """State from which a rank resumes."""

    step: int
    attained: int
    """Progress, as :attr:`LocalState.attained`."""
    holdings: LocalShards
    beside: Checkpoint
    was_behind: bool
    """True if this rank's own state was missing or older."""


class _Claim(NamedTuple):
    """Description of a rank's local state, exchanged with all ranks."""

    attained: int = _NOTHING
    step: int = _NOTHING
    may_be_ahead: int = 0
    kind: int = _NOTHING
    slot: int = _NOTHING

    @classmethod
    def of(cls, own: LocalState | None) -> _Claim:
        """Describe a local state, in integers only so that it fits into one vector."""
        if own is None:
            return cls()
        return cls(own.attained, own.step, int(own.ahead is not None), kind_of(own.layout), own.slot)

    def slot_at(self, step: int, kind: int) -> int:
        """Return the slot whose state after ``step`` steps the rank holds; -1 if it holds none."""
        reaches = self.step == step or (self.step == step - 1 and self.may_be_ahead)
        return self.slot if reaches and self.kind == kind else _NOTHING


def kind_of(layout: Layout) -> int:
    """Return a number that is equal for layouts whose replicas are cut alike.

    >>> kind_of(Layout(replicate=2, shard=4)) == kind_of(Layout(shard=4)) != kind_of(Layout(tp=4))
    True
    """
    return int.from_bytes(sha256(str(replace(layout, replicate=1)).encode()).digest()[:_KIND_BYTES])


def recover_from_peers(
    group: Group,
    layout: Layout,
    own: LocalState | None,
    *,
    demand: Callable[[Manifest], None],
    skipped: Callable[[Checkpoint], int],
) -> RecoveredState | None:
    """Return the newest state of this rank's slot, received from peers if necessary; every rank must call it.

    Args:
        group: The group of the ranks.
        layout: The new layout of the model. Ranks that have no place in it only send.
        own: The state that this rank kept; None if it has none.
        demand: Raises if the state is that of another run.
        skipped: Reads :attr:`LocalState.skipped` from :attr:`LocalState.beside`.

    Returns:
        The state; None on every rank if the ranks together do not hold all slots.
    """
    claims = _claims(group, _Claim.of(own))
    furthest = max(claim.attained for claim in claims)
    leader = [claim.attained for claim in claims].index(furthest)
    step = claims[leader].step
    slots = [claim.slot_at(step, kind_of(layout)) for claim in claims]
    if furthest == _NOTHING or not set(range(layout.replica)) <= set(slots):
        return None
    beside = from_rank(leader, None if own is None else own.beside, group, demand)
    holdings = None if own is None else _resolve_shards(own, step, moved=own.skipped == skipped(beside))
    mine = _exchange_shards(group, layout, slots, holdings)
    if group.rank < layout.world and slots[group.rank] == group.rank % layout.replica:
        assert holdings is not None  # noqa: S101 - it holds the slot
        mine = holdings
    return RecoveredState(step, furthest, mine, beside, was_behind=own is None or own.attained != furthest)


def _exchange_shards(group: Group, layout: Layout, slots: Sequence[int], holdings: LocalShards | None) -> LocalShards:
    """Exchange shards with peers, and return those that this rank received; empty if it needed none.

    Ranks that are in no pair of a round wait for the end of the round; see :func:`.exchange_states`.
    """
    given: LocalShards = {}
    pairs = transfer_pairs(slots, layout.replica, layout.world)
    for round_ in transfer_rounds(pairs):
        given = exchange_states(holdings, round_, group) or given
    return given


def transfer_rounds(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Group transfers into rounds, so that each rank takes part in at most one transfer per round.

    Each pair goes into the earliest possible round.

    Args:
        pairs: Pairs of source and destination rank.

    >>> transfer_rounds([(0, 4), (1, 5), (0, 6), (5, 7)])
    [[(0, 4), (1, 5)], [(0, 6), (5, 7)]]
    """
    found: list[tuple[set[int], list[tuple[int, int]]]] = []
    for pair in pairs:
        free = next((each for each in found if each[0].isdisjoint(pair)), None)
        if free is None:
            found.append(free := (set(), []))
        free[0].update(pair)
        free[1].append(pair)
    return [each for _, each in found]


def transfer_pairs(slots: Sequence[int], replica: int, places: int) -> list[tuple[int, int]]:
    """Return the pairs of source and destination rank for all missing slots, in a deadlock-free order.

    The holders of a slot take turns as source.

    Args:
        slots: Slot that each rank holds; -1 for none.
        replica: Number of ranks of a replica, which is the number of slots.
        places: Number of ranks in the layout; only the first ``places`` ranks need a slot.

    >>> transfer_pairs([0, 1, 0, -1], replica=2, places=4), transfer_pairs([0, 0, 1], replica=2, places=2)
    ([(1, 3)], [(2, 1)])
    """
    holders = {slot: [rank for rank, held in enumerate(slots) if held == slot] for slot in range(replica)}
    missing = [rank for rank, held in enumerate(slots[:places]) if held != rank % replica]
    turns = dict.fromkeys(range(replica), 0)
    found = []
    for rank in missing:
        slot = rank % replica
        found.append((holders[slot][turns[slot] % len(holders[slot])], rank))
        turns[slot] += 1
    return found


def _resolve_shards(own: LocalState, step: int, *, moved: bool) -> LocalShards:
    """Return this rank's shards of its old slot, after or before the step in doubt, depending on its outcome."""
    return own.ahead if own.step < step and own.ahead is not None and moved else own.holdings


def _claims(group: Group, own: _Claim) -> list[_Claim]:
    table = torch.zeros(group.world_size, len(own), dtype=torch.int64, device=group.device)
    table[group.rank] = torch.tensor(own)
    return [_Claim(*row) for row in group.read_sum(table)]
