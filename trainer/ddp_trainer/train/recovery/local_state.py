"""Capture and restoration of a distributed rank's state across worker groups.

:func:`capture_state` extracts the state when a group ends, and :func:`recover_state` exchanges it in the next group.
:func:`restore_state` loads it into the new model. They are called by :class:`~ddp_trainer.train.trainer.Trainer`.

:func:`take_out` extracts this rank's shards of weights and optimizer moments as plain tensors. :func:`put_in` copies
them into another model of the same class that was cut in the same way. torch's ``DTensor`` is bound to a mesh of
process groups and cannot outlive it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, unpack
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.resume_source import progress_key
from ddp_trainer.train.config.option_rules import layout_of
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState
from ddp_trainer.train.mesh.sharded_state import from_local, local_shard
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
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
    from ddp_trainer.train.recovery.local_state import take_out  # noqa: PLC0415 - a second of imports; only for distributed models

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
    from ddp_trainer.train.recovery.local_state import put_in  # noqa: PLC0415 - as above

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


LocalShards = dict[str, Any]
"""``weights`` by name, and ``optimizer`` in the form of its ``state_dict()``; local parts of all tensors."""


def take_out(model: nn.Module, optimization: OptimizerWrapper, *, copied: bool = False) -> LocalShards:
    """Return this rank's shards of weights and optimizer, on the CPU.

    Args:
        model: The distributed model.
        optimization: Its optimizer.
        copied: Copy also what is on the CPU already, because the model changes afterwards.
    """
    model.state_dict()  # after an aborted pass weights may be gathered; state_dict() shards them again
    weights = {name: weight.detach() for name, weight in model.named_parameters() if not weight.is_meta}
    own: LocalShards = _plain({"weights": weights, "optimizer": _local_optimizer_state(optimization)}, copied=copied)
    return own


def _local_optimizer_state(optimization: OptimizerWrapper) -> dict[str, Any]:
    """Return the optimizer's state without that of other stages' weights, which some create at construction."""
    state = optimization.state_dict()
    of_weights = {number: of for number, of in state["state"].items() if not any(map(_is_meta_tensor, of.values()))}
    return {**state, "state": of_weights}


def _is_meta_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def put_in(holdings: LocalShards, model: nn.Module, optimization: OptimizerWrapper) -> None:
    """Copy this rank's shards into a model that was cut in the same way, and into its optimizer."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_meta:
                local_shard(weight).copy_(holdings["weights"][name])
    weights = [weight for group in optimization.optimizer.param_groups for weight in group["params"]]
    state = holdings["optimizer"]
    cut = {number: _in_pieces(of, weights[number]) for number, of in state["state"].items()}
    optimization.load_state_dict({**state, "state": cut})


def _plain(value: Any, *, copied: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each, copied=copied) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each, copied=copied) for each in value]
    if not isinstance(value, Tensor):
        return value
    own = local_shard(value.detach())
    # On the CPU, because the device may not have room for the old and the new state together.
    return own.to("cpu", copy=copied)


def _in_pieces(state: Mapping[str, Any], weight: Tensor) -> dict[str, Any]:
    """Return the state of a weight with its moments sharded like the weight; counters stay whole."""
    if not isinstance(weight, DTensor):
        return dict(state)
    own = local_shard(weight)
    return {
        name: from_local(value.to(own.device), weight)
        if isinstance(value, Tensor) and value.dim() and value.shape == own.shape
        else value
        for name, value in state.items()
    }
