"""Tensors of a model that lie in memory as they are written, row behind row: collectives and shards ask for that."""

from __future__ import annotations

import torch
from torch import nn


def lay_out(model: nn.Module, *, spreads: bool) -> None:
    """Give buffers that lie otherwise memory of their own, in place, and so weights of a model that ``spreads``.

    A buffer may be a part of another tensor, its transpose, or one row that stands for many (``expand``), into which
    nothing can be written that another rank sends; torch's ``fully_shard`` takes no weights that lie so. Their numbers
    stay what they are, and so do the recipes of weights without memory.
    """
    for tensor in [*model.buffers(), *(model.parameters() if spreads else ())]:
        if tensor.layout is torch.strided:
            tensor.data = tensor.data.contiguous()
