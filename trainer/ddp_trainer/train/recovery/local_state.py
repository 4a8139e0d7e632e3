"""Capture and restoration of a distributed rank's state across worker groups.

:func:`capture_state` extracts the state when a group ends, and :func:`recover_state` exchanges it in the next group.
:func:`restore_state` loads it into the new model. They are called by :class:`~ddp_trainer.train.trainer.Trainer`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Final, TypeAlias

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.resume_source import progress_key
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState
from ddp_trainer.train.recovery.peer_recovery import LocalState, RecoveredState, recover_from_peers

_BUFFERS: Final = "buffers"

Demand: TypeAlias = Callable[[Manifest], None]
"""Callable that raises if the state is that of another run."""


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
    whole = {name: buffer.detach() for name, buffer in context.model.named_buffers()}
    beside = Checkpoint(state.manifest(), state=copy.deepcopy({**state.replicated(), _BUFFERS: whole}))
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


def recover_state(context: RunContext, own: LocalState | None, demand: Demand) -> RecoveredState | None:
    """Return the state of this rank's slot, or None if the ranks together lack a part; every rank must call it."""
    return recover_from_peers(context.process.group, _layout(context), own, demand=demand, skipped=_skipped)


def to_local_state(taken: RecoveredState, context: RunContext) -> LocalState:
    """Return a recovered state as a local state, to keep it if the group ends before it is loaded."""
    return LocalState(
        step=taken.step,
        attained=taken.attained,
        layout=_layout(context),
        rank=context.process.group.rank,
        holdings=taken.holdings,
        ahead=None,
        beside=taken.beside,
        skipped=_skipped(taken.beside),
    )


def restore_state(taken: RecoveredState, state: TrainState) -> RestoreResult:
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


def _skipped(beside: Checkpoint) -> int:
    return int(unpack(beside)["guard"]["skipped"])
