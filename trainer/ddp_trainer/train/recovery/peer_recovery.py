"""How a model that is spread over ranks gets from one group of ranks to the next in memory.

Each replica holds the state once, in as many slots as it has ranks, and ranks of different replicas that stand in the
same slot hold the same. So a rank that has come anew, or that stands in another slot than before, gets its slot's
state from any rank that held it. Where nobody is left that held some slot, the state of all is void: the group goes on
from the newest checkpoint on a disk, as it does where the layout asks for other slots.

All ranks of a group commit a step, or none does; but when a rank is lost in a vote, its verdict may have reached some
and not others. Unlike a rank that holds the whole state, one that is ahead cannot bring the others to where it is: it
holds its own slot alone. So whoever had cast its vote and not heard the verdict takes the step beforehand, and keeps
the state of before and after until it is known which one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_broadcast import from_rank
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import pack
from ddp_trainer.train.distributed.group import Group

if TYPE_CHECKING:
    from ddp_trainer.train.recovery.local_shards import LocalShards

_NOTHING: Final = -1
_BITS: Final = 20
"""Enough for the largest size of a dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """What a rank takes along from a group that is over."""

    step: int
    attained: int
    """How far that is, as :func:`ddp_trainer.train.checkpoint.resume_source.progress_key` says."""
    layout: Layout
    rank: int
    """Its place there."""
    holdings: LocalShards
    """After ``step`` steps."""
    ahead: LocalShards | None
    """After one more, which this rank has voted for and does not know to count; None where it knows of none."""
    beside: Checkpoint
    """What every rank has whole, after ``step`` steps."""
    skipped: int
    """Committed steps so far that moved no weight."""

    @property
    def slot(self) -> int:
        """Which part of a replica it holds."""
        return self.rank % self.layout.replica


class RecoveredState(NamedTuple):
    """What a rank goes on from."""

    step: int
    attained: int
    """As :attr:`LocalState.attained`."""
    holdings: LocalShards
    beside: Checkpoint
    was_behind: bool
    """It had not got so far itself."""


class _Claim(NamedTuple):
    """What a rank says of its luggage."""

    attained: int = _NOTHING
    step: int = _NOTHING
    may_be_ahead: int = 0
    kind: int = _NOTHING
    slot: int = _NOTHING

    @classmethod
    def of(cls, own: LocalState | None) -> _Claim:
        """All numbers, so that they travel in one vector."""
        if own is None:
            return cls()
        return cls(own.attained, own.step, int(own.ahead is not None), kind_of(own.layout), own.slot)

    def slot_at(self, step: int, kind: int) -> int:
        """The slot whose state after so many steps it has; nothing where it has that of none."""
        reaches = self.step == step or (self.step == step - 1 and self.may_be_ahead)
        return self.slot if reaches and self.kind == kind else _NOTHING


def kind_of(layout: Layout) -> int:
    """A number that layouts share whose replicas are cut alike.

    >>> kind_of(Layout(replicate=2, shard=4)) == kind_of(Layout(shard=4)) != kind_of(Layout(tp=4))
    True
    """
    return (layout.shard << 2 * _BITS) + (layout.tp << _BITS) + layout.pp


def recover_from_peers(
    group: Group,
    layout: Layout,
    own: LocalState | None,
    *,
    demand: Callable[[Manifest], None],
    skipped: Callable[[Checkpoint], int],
) -> RecoveredState | None:
    """Have the state of this rank's slot, as far as the group that is over got; every rank must call it.

    Args:
        group: the ranks.
        layout: how they share the model from now on; ranks that it has no place for give only.
        own: what this rank took along.
        demand: refuses, by raising, the state of another run.
        skipped: reads :attr:`LocalState.skipped` from what stands beside the pieces.

    Returns:
        None, on every rank, where the ranks do not hold the whole state between them.
    """
    claims = _claims(group, _Claim.of(own))
    furthest = max(claim.attained for claim in claims)
    leader = [claim.attained for claim in claims].index(furthest)
    step = claims[leader].step
    slots = [claim.slot_at(step, kind_of(layout)) for claim in claims]
    if furthest == _NOTHING or not set(range(layout.replica)) <= set(slots):
        return None
    beside = from_rank(leader, None if own is None else own.beside, group, demand)
    holdings = None if own is None else _settled(own, step, moved=own.skipped == skipped(beside))
    mine = _handed(group, layout, slots, holdings)
    if group.rank < layout.world and slots[group.rank] == group.rank % layout.replica:
        assert holdings is not None  # noqa: S101 - it holds the slot
        mine = holdings
    return RecoveredState(step, furthest, mine, beside, was_behind=own is None or own.attained != furthest)


def _handed(group: Group, layout: Layout, slots: Sequence[int], holdings: LocalShards | None) -> LocalShards:
    """What this rank is given of its slot; nothing where it has that. It gives its ``holdings`` to those who lack them.

    Ranks that are in no pair of a round wait for its end, as :meth:`Group.hand` says.
    """
    given: LocalShards = {}
    pairs = transfer_pairs(slots, layout.replica, layout.world)
    packed = _packed(holdings) if group.rank in {source for source, _ in pairs} and holdings is not None else None
    for round_ in transfer_rounds(pairs):
        received = group.hand(packed, round_)
        if received is not None:
            given = torch.load(BytesIO(received), map_location="cpu", weights_only=True)
    return given


def transfer_rounds(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs in as many rounds as it takes that no rank is in two of one round; as early as that goes.

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
    """Who gives its state to whom, in an order in which no two wait for each other; ``slots``: what each rank holds.

    Those who hold a slot take turns. Only the first ``places`` ranks need one.

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


def _settled(own: LocalState, step: int, *, moved: bool) -> LocalShards:
    """This rank's state of its old slot: a step that it could not know to count has counted, or has not."""
    return own.ahead if own.step < step and own.ahead is not None and moved else own.holdings


def _claims(group: Group, own: _Claim) -> list[_Claim]:
    table = torch.zeros(group.world_size, len(own), dtype=torch.int64, device=group.device)
    table[group.rank] = torch.tensor(own)
    return [_Claim(*row) for row in group.read(group.sum(table))]


def _packed(holdings: LocalShards) -> bytes:
    buffer = BytesIO()
    pack(holdings).write_to(buffer)
    return buffer.getvalue()
