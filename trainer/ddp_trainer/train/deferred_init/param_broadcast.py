"""Broadcast the initial weights of the first rank, because ranks may have drawn different ones.

A model that is drawn from the seed is the same on every rank. With another random source, such as NumPy's, it is not,
and ranks with the same weights would train different models. The entry points are :func:`send_from_first` for a model
and :func:`send` for a tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import piece

SHARING: Final = ("replicate", "shard", "tp")
"""Mesh dimensions along which ranks have the same weights, or pieces of them."""


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
    with group.watched(), torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_meta or name in loaded:  # weights of other stages are on the meta device
                continue
            own = piece(tensor)
            sent = own.detach().to(group.device)
            is_cut = isinstance(tensor, DTensor) and not all(each.is_replicate() for each in tensor.placements)
            send(sent, mesh, [name for name in SHARING if not (is_cut and name == "tp")])
            if sent.data_ptr() != own.data_ptr():
                own.copy_(sent)


def send(tensor: Tensor, mesh: Mesh, names: Sequence[str] = SHARING) -> None:
    """Broadcast a tensor from the first of the ranks along these mesh dimensions, in place."""
    for name in names:
        if getattr(mesh.layout, name) > 1:
            line = mesh.along(name).get_group()
            dist.broadcast(tensor, dist.get_global_rank(line, 0), line)
