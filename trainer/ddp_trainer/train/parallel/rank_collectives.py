"""Collectives of the hand-written strategies: broadcast from rank 0, and average over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ddp_trainer.train.distributed.group import Group


def send_from_first(tensors: Sequence[Tensor], group: Group) -> None:
    """Overwrite the tensors with those of rank 0, in place.

    Args:
        tensors: Tensors on the device, with the same shapes and dtypes on all ranks.
        group: Process group.
    """
    with group.convert_errors():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def average(tensors: Sequence[Tensor], group: Group) -> None:
    """Replace the tensors by their mean over ranks, in place; every rank gets the same bits.

    Args:
        tensors: Float tensors on the device, with the same shapes and dtypes on all ranks.
        group: Process group.
    """
    with group.convert_errors():
        for tensor in tensors:
            dist.all_reduce(tensor.detach())
            tensor.detach().div_(group.world_size)
