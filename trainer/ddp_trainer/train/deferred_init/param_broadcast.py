"""Broadcast the initial weights of the first rank, because ranks may have drawn different ones.

A model that is drawn from the seed is the same on every rank. With another random source it is not, and ranks with the
same weights would train different models. The entry points are :func:`init_pieces` for a model that is not initialized
yet, and :func:`send_from_first` for one that is.

Weights in ``loaded`` (names in the model) are neither computed nor sent, because a checkpoint provides them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.common.parallel_dims import SAME_LAYERS
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.deferred_init.skip_init import initial_weight
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import ShardedState, local_shard

SHARING: Final = SAME_LAYERS
"""Mesh dimensions along which ranks have the same weights, or pieces of them."""


def init_pieces(model: nn.Module, task: Task, seed: int, mesh: Mesh, group: Group, loaded: Collection[str]) -> None:
    """Fill this rank's pieces of weights and buffers, in place; every rank must call it.

    The first of the ranks that share a tensor initializes it and sends it to the others.

    Args:
        model: Sliced or sharded. Weights of other stages are on the meta device.
        task: The task, which has an ``init_weight``.
        seed: Seed of the run.
        mesh: Mesh of the ranks.
        group: The ranks.
        loaded: Names that a checkpoint provides; they are skipped.
    """
    is_first = not any(getattr(mesh.place, name) for name in SHARING)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_meta or name in loaded:
            continue
        with group.convert_errors(), torch.no_grad():
            if is_first:
                weight = initial_weight(model, task, seed, name, tensor).to(group.device)
            else:
                weight = torch.empty(tensor.shape, dtype=tensor.dtype, device=group.device)
            send(weight, mesh)
            local_shard(tensor).copy_(local_shard(ShardedState.cut(weight, tensor)))


def send_from_first(model: nn.Module, mesh: Mesh, group: Group, loaded: Collection[str]) -> None:
    """Broadcast weights and buffers from the first of the ranks that share them; every rank must call it.

    Before weights are sharded, ranks of ``replicate`` and ``shard`` hold the same weights. Ranks of ``tp`` share the
    weights that tensor parallelism does not slice. Tensors are sent one at a time through the device, where the
    collectives run.

    Args:
        model: Changed in place.
        mesh: Mesh of the ranks.
        group: The ranks.
        loaded: Names that a checkpoint provides; they are not sent.
    """
    with group.convert_errors(), torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_meta or name in loaded:  # weights of other stages are on the meta device
                continue
            own = local_shard(tensor)
            sent = own.detach().to(group.device)
            is_cut = isinstance(tensor, DTensor) and not all(
                placement.is_replicate() for placement in tensor.placements
            )
            send(sent, mesh, [name for name in SHARING if not (is_cut and name == "tp")])
            if sent.data_ptr() != own.data_ptr():
                own.copy_(sent)


def send(tensor: Tensor, mesh: Mesh, names: Sequence[str] = SHARING) -> None:
    """Broadcast a tensor from the first of the ranks along these mesh dimensions, in place.

    Args:
        tensor: Any shape and dtype; both are the same on all ranks.
        mesh: Mesh of the ranks.
        names: Mesh dimensions along which the ranks share it.
    """
    for name in names:
        if getattr(mesh.layout, name) > 1:
            line = mesh.along(name).get_group()
            dist.broadcast(tensor, dist.get_global_rank(line, 0), line)
