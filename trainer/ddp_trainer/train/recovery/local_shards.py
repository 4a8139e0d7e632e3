"""What one rank holds of a model that is spread over ranks, apart from the group of ranks that it was spread over.

Weights and moments are taken out as plain tensors, and put into the pieces of another model of the same class that was
cut in the same way: torch's own pieces (``DTensor``) are bound to a grid of process groups, and end with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.train.optim.optimizer import OptimizerWrapper

LocalShards = dict[str, Any]
"""``weights`` by their names, and ``optimizer`` as its ``state_dict()`` is; what lies on this rank of each tensor."""


def take_out(model: nn.Module, optimization: OptimizerWrapper, *, copied: bool = False) -> LocalShards:
    """What lies on this rank, as it is, or ``copied`` to the CPU where it is about to change."""
    model.state_dict()  # a pass that was broken off has weights whole; who asks for the state has them in pieces again
    weights = {name: weight.detach() for name, weight in model.named_parameters() if not weight.is_meta}
    own: LocalShards = _plain({"weights": weights, "optimizer": _here_alone(optimization)}, copied=copied)
    return own


def _here_alone(optimization: OptimizerWrapper) -> dict[str, Any]:
    """An optimizer's state without what some make at once of every weight, also of those of other stages."""
    state = optimization.state_dict()
    of_weights = {number: of for number, of in state["state"].items() if not any(map(_is_elsewhere, of.values()))}
    return {**state, "state": of_weights}


def _is_elsewhere(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def put_in(holdings: LocalShards, model: nn.Module, optimization: OptimizerWrapper) -> None:
    """Give a model that was cut in the same way, and its optimizer, what lies on this rank."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not weight.is_meta:
                here(weight).copy_(holdings["weights"][name])
    weights = [weight for group in optimization.optimizer.param_groups for weight in group["params"]]
    state = holdings["optimizer"]
    cut = {number: _in_pieces(of, weights[number]) for number, of in state["state"].items()}
    optimization.load_state_dict({**state, "state": cut})


def here(tensor: Tensor) -> Tensor:
    """What of a tensor lies on this rank; in place, where it is written to."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _plain(value: Any, *, copied: bool) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each, copied=copied) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each, copied=copied) for each in value]
    if not isinstance(value, Tensor):
        return value
    own = here(value.detach())
    # Of a device there may not be room for what was and for what comes beside it.
    return own.to("cpu", copy=copied)


def _in_pieces(state: Mapping[str, Any], weight: Tensor) -> dict[str, Any]:
    """Moments of a weight in pieces are in pieces as it is; counters are numbers everywhere."""
    if not isinstance(weight, DTensor):
        return dict(state)
    shape = here(weight).shape
    return {
        name: _as_piece(value, weight) if isinstance(value, Tensor) and value.dim() and value.shape == shape else value
        for name, value in state.items()
    }


def _as_piece(value: Tensor, weight: DTensor) -> DTensor:
    return DTensor.from_local(
        value.to(here(weight).device),
        weight.device_mesh,
        weight.placements,
        run_check=False,
        shape=weight.shape,
        stride=weight.stride(),
    )
