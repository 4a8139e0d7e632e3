"""The weights that a run begins with, where ranks may have drawn others: those of the first rank are everybody's.

A model that is drawn from the seed is the same on every rank. One that asks another source of chance, as numpy's, is
not, and ranks that hold the same would each learn something else.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ddp_trainer.train.group import Group
from ddp_trainer.train.mesh import Mesh
from ddp_trainer.train.spread import piece


def send_from_first(model: nn.Module, mesh: Mesh, group: Group) -> None:
    """Give ranks that hold the same the same weights and buffers, those of their first; every rank must call it.

    Ranks of ``replicate`` and ``shard`` hold the same before weights are cut into pieces, and those of ``tp`` what no
    slice is of. One tensor at a time by way of the device, where collectives run.
    """
    with group.watched(), torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_meta:  # of another stage
                continue
            own = piece(tensor)
            sent = own.detach().to(group.device)
            for line in _lines(tensor, mesh):
                dist.broadcast(sent, dist.get_global_rank(line, 0), line)
            if sent.data_ptr() != own.data_ptr():
                own.copy_(sent)


def _lines(tensor: Tensor, mesh: Mesh) -> Iterator[dist.ProcessGroup]:
    """Along which dimensions ranks hold the same of it."""
    is_cut = isinstance(tensor, DTensor) and not all(each.is_replicate() for each in tensor.placements)
    names = ("replicate", "shard") if is_cut else ("replicate", "shard", "tp")
    for name in names:
        if getattr(mesh.layout, name) > 1:
            yield mesh.along(name).get_group()
