"""This rank's shards of a distributed model, independent of the process group.

:func:`take_out` extracts weights and optimizer moments as plain tensors. :func:`put_in` copies them into another model
of the same class that was cut in the same way. torch's ``DTensor`` is bound to a mesh of process groups and cannot
outlive it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.train.mesh.sharded_state import from_local, local_shard
from ddp_trainer.train.optim.optimizer import OptimizerWrapper

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
        return {key: _plain(item, copied=copied) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, copied=copied) for item in value]
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
