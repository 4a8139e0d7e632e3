"""Contiguous memory layout of a model's tensors, which collectives and sharding require."""

from __future__ import annotations

import torch
from torch import nn


def make_contiguous(model: nn.Module, *, spreads: bool) -> None:
    """Make all strided buffers of a model contiguous, in place.

    A buffer may be a view of another tensor, a transpose, or one row expanded to many (``expand``). A collective cannot
    write received data into such a buffer, and torch's ``fully_shard`` rejects such weights. Values do not change.

    Args:
        model: The model to change.
        spreads: Also make the weights contiguous, because the ranks share one model.
    """
    for tensor in [*model.buffers(), *(model.parameters() if spreads else ())]:
        if tensor.layout is torch.strided:
            tensor.data = tensor.data.contiguous()
