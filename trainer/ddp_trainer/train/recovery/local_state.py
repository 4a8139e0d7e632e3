"""What a rank of a spread model takes along from a group that is over, and how it goes on with it in the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.resume_source import progress_key
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.loop.build_components import TrainState
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_state import Restored, State
from ddp_trainer.train.recovery.peer_recovery import LocalState, RecoveredState, recover_from_peers

_BUFFERS: Final = "buffers"

Demand: TypeAlias = Callable[[Manifest], None]
"""Refuses, by raising, the state of another run."""


def capture_state(ground: RunContext, kept: TrainState, state: State, step: int, *, in_doubt: bool) -> LocalState:
    """Of a group of which nothing answers any more; the model is of no use afterwards.

    ``in_doubt``: this rank has voted for one more step, whose gradients are still there, and did not hear the verdict.
    """
    from ddp_trainer.train.recovery.local_shards import take_out  # noqa: PLC0415 - a second of imports; of spread models alone

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
    """What this rank goes on from in its group, if the ranks hold it between them; every rank must call it."""
    return recover_from_peers(ground.around.group, _layout(ground), own, demand=demand, skipped=_skipped)


def recapture_state(taken: RecoveredState, ground: RunContext) -> LocalState:
    """What this rank goes on from: nobody else may have it, should the group end before it is unpacked."""
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


def restore_state(taken: RecoveredState, ground: RunContext, kept: TrainState, state: State) -> Restored:
    """Give a model that was cut for this group its pieces, and all that stands beside them."""
    from ddp_trainer.train.recovery.local_shards import put_in  # noqa: PLC0415 - as above

    beside = unpack(taken.beside)
    put_in(taken.holdings, ground.model, kept.optimization)
    for name, buffer in ground.model.named_buffers():
        if not buffer.is_meta:
            buffer.detach().copy_(beside[_BUFFERS][name])
    return state.give_beside(beside, knows_time=not taken.was_behind)


def _layout(ground: RunContext) -> Layout:
    assert ground.config.parallel is not None  # noqa: S101 - of a spread model
    return layout_of(ground.config.parallel, ground.around.group.world_size)


def _skipped(beside: Checkpoint) -> int:
    return int(unpack(beside)["guard"]["skipped"])
