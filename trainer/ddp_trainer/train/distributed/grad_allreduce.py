"""Gradients added up over ranks without a wrapper around the model: for loops that are the user's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import nn

from ddp_trainer.train.distributed.group import Group

_BUCKET_BYTES: Final = 25 << 20
"""As much as DDP sends at once."""


def add_up(weights: Sequence[nn.Parameter], group: Group) -> None:
    """Make every gradient the sum of those of all ranks; every rank must call it.

    A rank without samples has none, and gives zeros. A weight that no rank's samples reached keeps none, so that the
    optimizer leaves it alone, as it would in one process.
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
    """Runs of weights of one type, each about as large as is sent at once."""
    bucket: list[nn.Parameter] = []
    size = 0
    for weight in weights:
        if bucket and (size >= _BUCKET_BYTES or weight.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(weight)
        size += weight.numel() * weight.element_size()
    if bucket:
        yield bucket
