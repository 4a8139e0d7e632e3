"""The weights that a run begins with, where ranks may have drawn others: those of the first rank are everybody's.

A model that is drawn from the seed is the same on every rank. One that asks another source of chance, as numpy's, is
not, and ranks that hold the same would each learn something else.
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
"""Dimensions along which ranks have the same weights, or pieces of them."""


def send_from_first(model: nn.Module, mesh: Mesh, group: Group, loaded: Collection[str]) -> None:
    """Give ranks that hold the same the same weights and buffers, those of their first; every rank must call it.

    Those that are about to be ``loaded``, by their names, are left as they are.

    Ranks of ``replicate`` and ``shard`` hold the same before weights are cut into pieces, and those of ``tp`` what no
    slice is of. One tensor at a time by way of the device, where collectives run.
    """
    with group.watched(), torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_meta or name in loaded:  # on the meta device are those of another stage
                continue
            own = piece(tensor)
            sent = own.detach().to(group.device)
            is_cut = isinstance(tensor, DTensor) and not all(each.is_replicate() for each in tensor.placements)
            send(sent, mesh, [name for name in SHARING if not (is_cut and name == "tp")])
            if sent.data_ptr() != own.data_ptr():
                own.copy_(sent)


def send(tensor: Tensor, mesh: Mesh, names: Sequence[str] = SHARING) -> None:
    """Make it what it is on the first of the ranks along these dimensions, in place."""
    for name in names:
        if getattr(mesh.layout, name) > 1:
            line = mesh.along(name).get_group()
            dist.broadcast(tensor, dist.get_global_rank(line, 0), line)
