"""Initialize a model that was built on torch's meta device, after it is split over ranks.

:func:`materialize` allocates this rank's pieces, and :func:`init_weights` fills a model that is whole on every rank. Of
a split model, :func:`ddp_trainer.train.deferred_init.param_broadcast.init_pieces` does. Both take one weight at a time
from the task's ``init_weight``, so a rank needs memory for its own pieces and one complete weight. The random
generators are seeded from the seed of the run and the name of the weight, so the values do not depend on the layout.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils import swap_tensors

from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.task import SupportsWeightInit, Task


def is_deferred(model: nn.Module) -> bool:
    """Return True if the model is on the meta device, before any weight has memory."""
    return any(weight.is_meta for weight in model.parameters())


def materialize(
    model: nn.Module, device: torch.device, *, weights_on: torch.device | None = None, without: Collection[str] = ()
) -> None:
    """Allocate weights and buffers in place, filled with NaN; types without NaN stay uninitialized.

    A weight that is never filled then shows in the first loss. ``nn.Module.to_empty`` would also allocate other stages,
    and would separate modules that share a weight.

    Args:
        model: The model, possibly sliced or sharded.
        device: Device of weights and buffers.
        weights_on: Another device for the weights.
        without: Names of weights that stay on the meta device.
    """
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in without:
            continue
        is_weight = isinstance(tensor, nn.Parameter)
        room = _uninitialized_like(tensor, weights_on or device if is_weight else device)
        room = nn.Parameter(room, requires_grad=tensor.requires_grad) if is_weight else room
        swap_tensors(tensor, room)  # type: ignore[no-untyped-call] # of torch


def init_weights(model: nn.Module, task: Task, seed: int, loaded: Collection[str]) -> None:
    """Fill weights and buffers of a whole model in place, except those whose names are in ``loaded``."""
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if name not in loaded:
                tensor.copy_(initial_weight(model, task, seed, name, tensor))


def initial_weight(model: nn.Module, task: Task, seed: int, name: str, like: Tensor) -> Tensor:
    """Return the complete initial tensor of this name, on the CPU, with the shape and dtype of ``like``."""
    random = KeyedRng(seed, torch.device("cpu"))
    random.enter(Stream.WEIGHTS, int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    with torch.no_grad():
        whole = _uninitialized_like(torch.empty(like.shape, dtype=like.dtype, device="meta"), torch.device("cpu"))
        cast("SupportsWeightInit", task).init_weight(model, name, whole)
    random.enter(Stream.WEIGHTS)  # as on ranks that initialize nothing
    return whole


def _uninitialized_like(tensor: Tensor, device: torch.device) -> Tensor:
    blank = torch.empty_like(tensor, device=device)
    return blank.fill_(math.nan) if blank.is_floating_point() or blank.is_complex() else blank
