"""What a rank of a spread model takes along from a group that is over, and how it goes on with it in the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.resume_source import attained
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.loop.build_components import Kept
from ddp_trainer.train.loop.run_context import Groundwork
from ddp_trainer.train.loop.train_state import Restored, State
from ddp_trainer.train.recovery.peer_recovery import Luggage, Taken, take_over

_BUFFERS: Final = "buffers"

Demand: TypeAlias = Callable[[Manifest], None]
"""Refuses, by raising, the state of another run."""


def pack_up(ground: Groundwork, kept: Kept, state: State, step: int, *, in_doubt: bool) -> Luggage:
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
    return Luggage(
        step=step,
        attained=attained(step, is_evaluated=watch.has_seen(step)),
        layout=_layout(ground),
        rank=group.rank,
        holdings=holdings,
        ahead=ahead,
        beside=beside,
        skipped=ground.guard.skipped,
    )


def find_slot(ground: Groundwork, own: Luggage | None, demand: Demand) -> Taken | None:
    """What this rank goes on from in its group, if the ranks hold it between them; every rank must call it."""
    return take_over(ground.around.group, _layout(ground), own, demand=demand, skipped=_skipped)


def pack_again(taken: Taken, ground: Groundwork) -> Luggage:
    """What this rank goes on from: nobody else may have it, should the group end before it is unpacked."""
    return Luggage(
        step=taken.step,
        attained=taken.attained,
        layout=_layout(ground),
        rank=ground.around.group.rank,
        holdings=taken.holdings,
        ahead=None,
        beside=taken.beside,
        skipped=_skipped(taken.beside),
    )


def unpack_slot(taken: Taken, ground: Groundwork, kept: Kept, state: State) -> Restored:
    """Give a model that was cut for this group its pieces, and all that stands beside them."""
    from ddp_trainer.train.recovery.local_shards import put_in  # noqa: PLC0415 - as above

    beside = unpack(taken.beside)
    put_in(taken.holdings, ground.model, kept.optimization)
    for name, buffer in ground.model.named_buffers():
        if not buffer.is_meta:
            buffer.detach().copy_(beside[_BUFFERS][name])
    return state.give_beside(beside, knows_time=not taken.was_behind)


def _layout(ground: Groundwork) -> Layout:
    assert ground.config.parallel is not None  # noqa: S101 - of a spread model
    return layout_of(ground.config.parallel, ground.around.group.world_size)


def _skipped(beside: Checkpoint) -> int:
    return int(unpack(beside)["guard"]["skipped"])
