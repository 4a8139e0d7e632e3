"""In-memory recovery of a distributed model: capture a rank's state, and restore it with shards of peers.

:func:`capture_state` extracts the state when a group ends. :func:`recover_state` agrees with the ranks of the next
group on a state that they hold together, and :func:`restore_state` loads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_broadcast import from_rank, progress_key
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.state_transfer import exchange_states
from ddp_trainer.train.config.config import layout_of
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState

if TYPE_CHECKING:
    from ddp_trainer.train.recovery.local_shards import LocalShards

_NOTHING: Final = -1
_KIND_BYTES: Final = 7
"""Bytes of :func:`kind_of`, so that it fits into an int64 and two layouts do not get the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalState:
    """State that a rank keeps from a group that has ended, or has recovered from its peers."""

    step: int
    attained: int
    """Progress as returned by :func:`ddp_trainer.train.checkpoint.checkpoint_broadcast.progress_key`."""
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
    was_behind: bool = False
    """True if the state was recovered, and this rank's own state was missing or older."""

    @property
    def slot(self) -> int:
        """Index of the part of a replica that this rank holds."""
        return self.rank % self.layout.replica


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


def recover_state(context: RunContext, own: LocalState | None, demand: Callable[[Manifest], None]) -> LocalState | None:
    """Return the newest state of this rank's slot, received from peers if necessary; every rank must call it.

    Ranks that have no place in the new layout only send.

    Args:
        context: The context of the new group.
        own: The state that this rank kept; None if it has none.
        demand: Raises if the state is that of another run.

    Returns:
        The state; None on every rank if the ranks together do not hold all slots.
    """
    group, layout = context.process.group, _layout(context)
    claims = _claims(group, _Claim.of(own))
    furthest = max(claim.attained for claim in claims)
    leader = [claim.attained for claim in claims].index(furthest)
    step = claims[leader].step
    slots = [claim.slot_at(step, kind_of(layout)) for claim in claims]
    if furthest == _NOTHING or not set(range(layout.replica)) <= set(slots):
        return None
    beside = from_rank(leader, None if own is None else own.beside, group, demand)
    skipped = int(unpack(beside)["guard"]["skipped"])
    holdings = None if own is None else _resolve_shards(own, step, moved=own.skipped == skipped)
    shards = _exchange_shards(group, layout, slots, holdings)
    if group.rank < layout.world and slots[group.rank] == group.rank % layout.replica:
        assert holdings is not None  # noqa: S101 - it holds the slot
        shards = holdings
    return LocalState(
        step=step,
        attained=furthest,
        layout=layout,
        rank=group.rank,
        holdings=shards,
        ahead=None,
        beside=beside,
        skipped=skipped,
        was_behind=own is None or own.attained != furthest,
    )


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
        free = next((entry for entry in found if entry[0].isdisjoint(pair)), None)
        if free is None:
            found.append(free := (set(), []))
        free[0].update(pair)
        free[1].append(pair)
    return [entry for _, entry in found]


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


_BUFFERS: Final = "buffers"


def capture_state(state: TrainState, *, in_doubt: bool) -> LocalState:
    """Return this rank's part of the state of a group that has ended; the model cannot be used afterwards.

    Args:
        state: The training state.
        in_doubt: This rank voted for one more step and did not receive the decision. Its gradients are still there.
    """
    from ddp_trainer.train.recovery.local_shards import take_out  # noqa: PLC0415 - a second of imports; only for distributed models

    context, optimizer, step = state.context, state.optimizer, state.step
    if state.sharded is not None:
        state.sharded.break_off()
    buffers = {name: buffer.detach() for name, buffer in context.model.named_buffers()}
    beside = Checkpoint(state.manifest(), state=copy.deepcopy({**state.replicated(), _BUFFERS: buffers}))
    holdings = take_out(context.model, optimizer, copied=in_doubt)
    ahead = None
    if in_doubt:
        optimizer.step(step)
        ahead = take_out(context.model, optimizer)
    if state.sharded is not None:
        state.sharded.mesh.release_groups()
    return LocalState(
        step=step,
        attained=progress_key(step, is_evaluated=context.watch.has_seen(step)),
        layout=_layout(context),
        rank=context.process.group.rank,
        holdings=holdings,
        ahead=ahead,
        beside=beside,
        skipped=context.guard.skipped,
    )


def restore_state(taken: LocalState, state: TrainState) -> RestoreResult:
    """Load a recovered state into a model that was cut for this group, and into the other components."""
    from ddp_trainer.train.recovery.local_shards import put_in  # noqa: PLC0415 - as above

    beside = unpack(taken.beside)
    put_in(taken.holdings, state.context.model, state.optimizer)
    for name, buffer in state.context.model.named_buffers():
        if not buffer.is_meta:
            buffer.detach().copy_(beside[_BUFFERS][name])
    return state.load_replicated(beside, knows_time=not taken.was_behind)


def _layout(context: RunContext) -> Layout:
    assert context.config.parallel is not None  # noqa: S101 - only for distributed models
    return layout_of(context.config.parallel, context.process.group.world_size)
