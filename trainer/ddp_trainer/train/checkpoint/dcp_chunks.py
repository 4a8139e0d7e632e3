"""Select the chunks of a sharded state that each rank writes.

The entry point is :func:`local_state_dict`. Every tensor has a name that does not depend on the layout. Model tensors
are ``model.<name>``, as in the model's state dict. Optimizer tensors are ``optimizer.<number>.<key>``, numbered as in
an optimizer of the complete model. A rank writes chunks: an offset in the complete tensor, and the data. The save
planner of ``torch.distributed.checkpoint`` finds the chunks on a rank, because it supports every way in which torch
shards a tensor. If several ranks hold a chunk, the layout determines which one writes it, so the choice needs no
communication. Replicas after the first do not write, since they may join and leave. The module imports
``torch.distributed.checkpoint``, so it is imported only for a sharded state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from ddp_trainer.common.parallel_dims import DIMENSIONS

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState

MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
TENSORS: Final = "tensors"
"""Key in a file: name of a tensor → its shape and chunks."""
VALUES: Final = "values"
"""Key in a file: name → value of the optimizer's state that is not a tensor."""


def local_state_dict(model: nn.Module, optimizer: Optimizer, spread: ShardedState) -> dict[str, Any]:
    """Return the tensors and values of model and optimizer that this rank writes.

    The tensors share memory with the model and the optimizer.
    """
    written: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, tensor in weights_here(model).items():
        if _is_first(tensor, name, spread):
            written[f"{MODEL}.{name}"] = tensor
    for weight, number, name in enumerate_params(model, optimizer):
        for key, value in optimizer.state.get(weight, {}).items():
            is_like_weight = isinstance(value, Tensor) and value.shape == weight.shape
            if not _is_first(weight if is_like_weight else value, name, spread):
                continue
            known = f"{OPTIMIZER}.{number}.{key}"
            if isinstance(value, Tensor):
                written[known] = value
            else:
                values[known] = value
    return {TENSORS: _chunks(written), VALUES: values}


def weights_here(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's state dict without the weights of other pipeline stages, which are on the meta device."""
    return {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}


def enumerate_params(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[Tensor, int, str]]:
    """Yield each weight of an optimizer on this rank, with its number and its name in the complete model."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in enumerate(weights):
        if not weight.is_meta:
            yield weight, number, names.get(id(weight), "")


def _chunks(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the local chunks of each tensor with their offsets; empty chunks of non-empty tensors are omitted."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    found: dict[str, Any] = {}
    for item in planner.create_local_plan().items:
        data, tensor = item.tensor_data, planner.resolve_data(item)
        assert data is not None  # noqa: S101 - set for every tensor
        assert isinstance(tensor, Tensor)  # noqa: S101 - as above
        if tensor.numel() or not math.prod(data.size):
            entry = found.setdefault(item.index.fqn, {"size": list(data.size), "chunks": []})
            entry["chunks"].append((list(data.chunk.offsets), tensor.detach()))
    return found


def _is_first(tensor: object, name: str, spread: ShardedState) -> bool:
    """Return True if this rank writes its piece of a tensor that belongs to the weight ``name``.

    Among the ranks with the same piece, the one with the lowest coordinate in every mesh dimension writes it. For the
    pipeline dimension, the lowest is the first stage that has the weight.
    """
    cut, place = _cut_along(tensor, spread), spread.mesh.place
    return all(
        each.name in cut or getattr(place, each.name) == (spread.first_stage_of(name) if each.splits_layers else 0)
        for each in DIMENSIONS
    )


def _cut_along(tensor: object, spread: ShardedState) -> set[str]:
    """Return the mesh dimensions along which ranks hold different pieces."""
    if not isinstance(tensor, DTensor):
        return set()
    names = spread.mesh.dimensions(tensor.device_mesh)
    return {name for name, placement in zip(names, tensor.placements, strict=True) if not placement.is_replicate()}
