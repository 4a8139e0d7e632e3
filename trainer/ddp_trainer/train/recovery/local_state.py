"""Capture and restoration of a distributed rank's state across worker groups.

:func:`capture_state` extracts the state when a group ends, and :func:`recover_state` exchanges it in the next group.
:func:`restore_state` loads it into the new model. They are called by :class:`~ddp_trainer.train.trainer.Trainer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.resume_source import progress_key
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.loop.build_components import TrainState
from ddp_trainer.train.loop.checkpoint_state import CheckpointState, Restored
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.recovery.peer_recovery import LocalState, RecoveredState, recover_from_peers

_BUFFERS: Final = "buffers"

Demand: TypeAlias = Callable[[Manifest], None]
"""Callable that raises if the state is that of another run."""


def capture_state(
    ground: RunContext, kept: TrainState, state: CheckpointState, step: int, *, in_doubt: bool
) -> LocalState:
    """Return this rank's part of the state of a group that has ended; the model cannot be used afterwards.

    Args:
        ground: The context of the run.
        kept: Plan, sample account and optimizer.
        state: The state of the run.
        step: Number of committed steps.
        in_doubt: This rank voted for one more step and did not receive the decision. Its gradients are still there.
    """
    from ddp_trainer.train.recovery.local_shards import take_out  # noqa: PLC0415 - a second of imports; only for distributed models

    group, watch = ground.around.group, ground.watch
    if kept.spread is not None:
        kept.spread.break_off()
    whole = {name: buffer.detach().clone() for name, buffer in ground.model.named_buffers()}
    beside = copied({**state.beside(step, None, None), _BUFFERS: whole}, state.manifest(step))
    holdings = take_out(ground.model, kept.optimization, copied=in_doubt)
    ahead = None
    if in_doubt:
        kept.optimization.step(step)
        ahead = take_out(ground.model, kept.optimization)
    if kept.spread is not None:
        kept.spread.mesh.let_go()
    return LocalState(
        step=step,
        attained=progress_key(step, is_evaluated=watch.has_seen(step)),
        layout=_layout(ground),
        rank=group.rank,
        holdings=holdings,
        ahead=ahead,
        beside=beside,
        skipped=ground.guard.skipped,
    )


def recover_state(ground: RunContext, own: LocalState | None, demand: Demand) -> RecoveredState | None:
    """Return the state of this rank's slot, or None if the ranks together lack a part; every rank must call it."""
    return recover_from_peers(ground.around.group, _layout(ground), own, demand=demand, skipped=_skipped)


def recapture_state(taken: RecoveredState, ground: RunContext) -> LocalState:
    """Return a recovered state as a local state, to keep it if the group ends before it is loaded."""
    return LocalState(
        step=taken.step,
        attained=taken.attained,
        layout=_layout(ground),
        rank=ground.around.group.rank,
        holdings=taken.holdings,
        ahead=None,
        beside=taken.beside,
        skipped=_skipped(taken.beside),
    )


def restore_state(taken: RecoveredState, ground: RunContext, kept: TrainState, state: CheckpointState) -> Restored:
    """Load a recovered state into a model that was cut for this group, and into the other components."""
    from ddp_trainer.train.recovery.local_shards import put_in  # noqa: PLC0415 - as above

    beside = unpack(taken.beside)
    put_in(taken.holdings, ground.model, kept.optimization)
    for name, buffer in ground.model.named_buffers():
        if not buffer.is_meta:
            buffer.detach().copy_(beside[_BUFFERS][name])
    return state.give_beside(beside, knows_time=not taken.was_behind)


def _layout(ground: RunContext) -> Layout:
    assert ground.config.parallel is not None  # noqa: S101 - only for distributed models
    return layout_of(ground.config.parallel, ground.around.group.world_size)


def _skipped(beside: Checkpoint) -> int:
    return int(unpack(beside)["guard"]["skipped"])
