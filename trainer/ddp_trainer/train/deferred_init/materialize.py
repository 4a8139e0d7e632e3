"""Materialize a deferred model: shard its weights without memory, then fill them.

:func:`fill` computes, sends and shards one weight at a time, so a rank needs memory for its own pieces and one complete
weight. Weights in ``loaded`` (names in the model) are neither computed nor sent, because a checkpoint provides them.
They are NaN until then, so a weight that the load misses shows in the first loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils import swap_tensors

from ddp_trainer.train.deferred_init.init_replay import InitRecipe
from ddp_trainer.train.deferred_init.param_broadcast import SHARING, send
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import piece

Numbers: TypeAlias = Tensor | InitRecipe | None
"""Values of a complete weight: a tensor, a recipe, or None if they will be loaded."""

_META: Final = torch.device("meta")


def agree(
    model: nn.Module, recipes: Mapping[Tensor, InitRecipe], group: Group, loaded: Collection[str]
) -> Mapping[Tensor, InitRecipe]:
    """Return the recipes if every rank has some; else materialize the weights and return no recipes.

    Every rank must call it, because the collectives that follow must match.
    """
    if all(group.gather(bool(recipes))):
        return recipes
    fill_here(model, recipes, torch.device("cpu"), loaded)
    return {}


def empty_out(model: nn.Module, recipes: Mapping[Tensor, InitRecipe], loaded: Collection[str]) -> dict[str, Numbers]:
    """Replace the weights of a model by meta tensors, in place.

    Returns:
        The values of the weights, by name. Weights of other stages are on the meta device already and are omitted.
    """
    numbers: dict[str, Numbers] = {}
    for name, weight in model.named_parameters():
        if weight in recipes:
            numbers[name] = recipes[weight]
        elif not weight.is_meta:
            numbers[name] = whole = _room(weight, _META)
            _swap(weight, whole)
    return {name: None if name in loaded else found for name, found in numbers.items()}


def send_buffers(model: nn.Module, mesh: Mesh, group: Group, loaded: Collection[str]) -> None:
    """Move the model's buffers to the device and broadcast those of the first rank."""
    with group.watched(), torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.data = buffer.data.to(group.device)
            if name not in loaded:
                send(buffer, mesh)


def fill(model: nn.Module, numbers: dict[str, Numbers], mesh: Mesh, group: Group, device: torch.device) -> None:
    """Allocate weights without memory on this device and fill in this rank's pieces, in place.

    The first of the ranks that share a weight computes it and sends it to the others; all of them must call this. A
    model that is drawn from the seed is the same on every rank. With another random source, such as NumPy's, it is not,
    and the ranks would train different models.

    Args:
        model: Changed in place.
        numbers: Values by name; used entries are removed.
        mesh: Mesh of the ranks.
        group: The ranks.
        device: Device of the weights.
    """
    is_first = not any(getattr(mesh.place, name) for name in SHARING)
    weights = {name: weight for name, weight in model.named_parameters() if name in numbers}
    # Allocate all of them first. With complete weights in between, the freed gaps would be too small for the next ones.
    for weight in weights.values():
        _swap(weight, _room(weight, device))
    for name, weight in weights.items():
        found = numbers.pop(name)
        if found is None:
            _leave_open(weight)
            continue
        with group.watched(), torch.no_grad():
            if is_first:
                whole = (
                    (found.numbers() if isinstance(found, InitRecipe) else found).detach().to(group.device).contiguous()
                )
            else:
                whole = torch.empty(weight.shape, dtype=weight.dtype, device=group.device)
            send(whole, mesh)
            piece(weight).copy_(_cut(whole, weight))


def fill_here(
    model: nn.Module, recipes: Mapping[Tensor, InitRecipe], device: torch.device, loaded: Collection[str]
) -> None:
    """Compute the values of weights with recipes, in place, on a rank that has the complete model."""
    for name, weight in list(model.named_parameters()):
        if weight in recipes:
            room = _room(weight, device)
            if name in loaded:
                _leave_open(room)
            else:
                with torch.no_grad():
                    room.copy_(recipes[weight].numbers())
            _swap(weight, room)


def _leave_open(weight: Tensor) -> None:
    """Fill a weight that will be loaded with NaN; types without NaN stay uninitialized."""
    if weight.is_floating_point() or weight.is_complex():
        with torch.no_grad():
            piece(weight).fill_(math.nan)


def _swap(weight: Tensor, other: Tensor) -> None:
    """Replace the weight by another tensor for every object that refers to it."""
    swap_tensors(weight, other)  # type: ignore[no-untyped-call] # of torch


def _room(weight: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device=device), requires_grad=weight.requires_grad)


def _cut(whole: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return whole
    return piece(distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None))
