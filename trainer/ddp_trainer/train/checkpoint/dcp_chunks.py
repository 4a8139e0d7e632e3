"""What of a spread state each rank writes: the pieces that it is the first to hold, as torch's save planner cuts them.

Every tensor has a name by which it is known under any layout: ``model.<name>`` as in the model's own state, and
``optimizer.<number>.<key>``, where weights are numbered as by an optimizer of the whole model. What a rank writes of it
are chunks: a place in the whole, and the numbers. Which chunks lie on a rank says ``torch.distributed.checkpoint``,
whose planner knows every way in which torch cuts a tensor; who of several holders writes one follows from the layout,
so that ranks need not speak about it, and replicas beyond the first, which may come and go, take no part.

Imports ``torch.distributed.checkpoint``, so it is imported where there is a spread state alone.
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
"""Of what a file holds: name of a tensor → its shape, and chunks."""
VALUES: Final = "values"
"""Of what a file holds: name → what is no tensor of an optimizer's state."""


def own_part(model: nn.Module, optimizer: Optimizer, spread: ShardedState) -> dict[str, Any]:
    """What this rank writes of model and optimizer; its tensors are the state's own, not copies."""
    written: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for name, tensor in weights_here(model).items():
        if _is_first(tensor, name, spread):
            written[f"{MODEL}.{name}"] = tensor
    for weight, number, name in numbered(model, optimizer):
        for key, value in optimizer.state.get(weight, {}).items():
            if not _is_first(weight if _has_shape_of(value, weight) else value, name, spread):
                continue
            known = f"{OPTIMIZER}.{number}.{key}"
            if isinstance(value, Tensor):
                written[known] = value
            else:
                values[known] = value
    return {TENSORS: _chunks(written), VALUES: values}


def weights_here(model: nn.Module) -> dict[str, Tensor]:
    """The model's own state, without the weights of other stages, which have no memory here."""
    return {name: tensor for name, tensor in model.state_dict().items() if not tensor.is_meta}


def numbered(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[Tensor, int, str]]:
    """The weights of an optimizer that lie here, each with its number and its name in the whole model."""
    names = {id(weight): name for name, weight in model.named_parameters()}
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, weight in enumerate(weights):
        if not weight.is_meta:
            yield weight, number, names.get(id(weight), "")


def _chunks(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What of them lies here, each with its place in the whole; empty chunks of what is not empty are left out."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=True)
    found: dict[str, Any] = {}
    for item in planner.create_local_plan().items:
        data, tensor = item.tensor_data, planner.resolve_data(item)
        assert data is not None  # noqa: S101 - of tensors alone
        assert isinstance(tensor, Tensor)  # noqa: S101 - as above
        if tensor.numel() or not math.prod(data.size):
            entry = found.setdefault(item.index.fqn, {"size": list(data.size), "chunks": []})
            entry["chunks"].append((list(data.chunk.offsets), tensor.detach()))
    return found


def _is_first(tensor: object, name: str, spread: ShardedState) -> bool:
    """Whether of the ranks that hold this piece of what belongs to the weight of this name, it is this one's to write.

    That is the rank with the lowest place in every dimension along which the piece is not another one.
    """
    cut, place = _cut_along(tensor, spread), spread.mesh.place
    lowest = {"pp": spread.first_stage_of(name)}
    return all(name in cut or getattr(place, name) == lowest.get(name, 0) for name in DIMENSIONS)


def _cut_along(tensor: object, spread: ShardedState) -> set[str]:
    """Dimensions of the layout along which ranks hold different pieces."""
    if not isinstance(tensor, DTensor):
        return set()
    names = spread.mesh.dimensions(tensor.device_mesh)
    return {name for name, placement in zip(names, tensor.placements, strict=True) if not placement.is_replicate()}


def _has_shape_of(value: object, weight: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == weight.shape
