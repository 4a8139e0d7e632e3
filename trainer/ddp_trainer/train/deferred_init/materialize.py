"""Weights on their way from where a model was drawn to where it is trained: cut while it has no memory, then filled.

Each weight is made by itself, sent, cut and let go of, so a rank needs room for what it keeps and for one weight more.
What is about to be ``loaded``, by its names in the model, is not made or sent. Such a weight is not a number until
then: one that a load forgot shows in the first loss, and is never what happened to lie in memory.
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
"""Of a whole weight: there, to be made, or, where it is None, to be loaded."""

_META: Final = torch.device("meta")


def agree(
    model: nn.Module, recipes: Mapping[Tensor, InitRecipe], group: Group, loaded: Collection[str]
) -> Mapping[Tensor, InitRecipe]:
    """The recipes of the model's weights where every rank has some; else none, and the weights have been filled.

    Every rank must call it: what follows is one exchange after the other.
    """
    if all(group.gather(bool(recipes))):
        return recipes
    fill_here(model, recipes, torch.device("cpu"), loaded)
    return {}


def empty_out(model: nn.Module, recipes: Mapping[Tensor, InitRecipe], loaded: Collection[str]) -> dict[str, Numbers]:
    """Leave a model nothing but the shapes of its weights, in place.

    Returns:
        What belongs into them, by name; of weights of other stages, which have been left their shape before, nothing.
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
    """Bring the model's buffers to the device; those of the first rank are everybody's."""
    with group.watched(), torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.data = buffer.data.to(group.device)
            if name not in loaded:
                send(buffer, mesh)


def fill(model: nn.Module, numbers: dict[str, Numbers], mesh: Mesh, group: Group, device: torch.device) -> None:
    """Give weights that have no memory some on this device, and their pieces of these numbers, in place.

    The first of the ranks that share a weight makes it, and sends it to the others, who all must call this. A model
    that is drawn from the seed is the same on every rank; one that asks another source of chance, as numpy's, is not,
    and ranks would each learn something else. What is used is taken out of ``numbers``.
    """
    is_first = not any(getattr(mesh.place, name) for name in SHARING)
    weights = {name: weight for name, weight in model.named_parameters() if name in numbers}
    # All of them first: with whole weights between them, what these leave behind would be too small for the next ones.
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
    """Give those weights of a model their numbers that have recipes, in place, where a rank has it whole."""
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
    """To what is loaded. Other types than these have no number that stands for none."""
    if weight.is_floating_point() or weight.is_complex():
        with torch.no_grad():
            piece(weight).fill_(math.nan)


def _swap(weight: Tensor, other: Tensor) -> None:
    """Let everything that holds the weight hold the other one."""
    swap_tensors(weight, other)  # type: ignore[no-untyped-call] # of torch


def _room(weight: Tensor, device: torch.device) -> nn.Parameter:
    return nn.Parameter(torch.empty_like(weight, device=device), requires_grad=weight.requires_grad)


def _cut(whole: Tensor, like: Tensor) -> Tensor:
    if not isinstance(like, DTensor):
        return whole
    return piece(distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None))
