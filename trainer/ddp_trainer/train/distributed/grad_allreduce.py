"""Gradient all-reduce without a model wrapper, for user-written training loops; :func:`add_up` is the entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from ddp_trainer.train.distributed.group import Group

_BUCKET_BYTES: Final = 25 << 20
"""Bucket size in bytes, the default of DDP."""

# torch 2.13 renamed these and warns about the old names; older versions have only the old names.
ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def add_up(weights: Sequence[nn.Parameter], group: Group) -> None:
    """Replace every gradient by its sum over all ranks. Every rank must call this.

    A rank without samples has no gradients and contributes zeros. If no rank has a gradient for a weight, its gradient
    stays None, so the optimizer skips the weight as in a single process.

    Args:
        weights: The weights, in the same order on all ranks.
        group: The group of the ranks.
    """
    if group.world_size == 1:
        return
    reached = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32, device=group.device)
    used = [weight for weight, flag in zip(weights, group.read(group.max(reached)), strict=True) if flag]
    for bucket in buckets(used):
        grads = [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in bucket]
        flat = group.sum(torch.cat([grad.flatten() for grad in grads]))
        for weight, part in zip(bucket, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
            weight.grad = part.view_as(weight)


def buckets(weights: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield buckets of consecutive weights with the same dtype; a bucket is closed when it reaches 25 MiB."""
    bucket: list[nn.Parameter] = []
    size = 0
    for weight in weights:
        if bucket and (size >= _BUCKET_BYTES or weight.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(weight)
        size += weight.nbytes
    if bucket:
        yield bucket
