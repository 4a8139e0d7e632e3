"""Pipeline stages of the GPT: consecutive layers, with the embedding in the first and the output in the last stage.

Weights of a stage have the names of the whole model, so checkpoints do not depend on stages. The token embedding is
also the output layer, and therefore in the first and in the last stage.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ddp_trainer.common.trainer_options import of_stages
from ddp_trainer.train.data.batch_plan import cut
from ddp_trainer.train.models.gpt_layers import Block, GptParts
from ddp_trainer.train.utils.errors import BadConfig


class GptStage(nn.Module):
    """Pipeline stage of a GPT.

    The input is the residual stream of the previous stage, or tokens in the first stage. The output is the residual
    stream, or logits in the last stage.
    """

    def __init__(self, model: GptParts, index: int, count: int) -> None:
        """Make stage ``index`` of ``count``, which shares its weights with the model.

        Raises:
            BadConfig: A stage would have no layer.
        """
        super().__init__()
        layers = len(model.blocks)
        for misfit in of_stages(count, layers=layers):
            raise BadConfig(misfit.message, hint=misfit.help)
        own = range(layers)[cut(layers, count, index)]
        self._is_first, self._is_last = index == 0, index == count - 1
        self.blocks = nn.ModuleDict({str(layer): model.blocks[layer] for layer in own})
        if self._is_first or self._is_last:
            self.tokens = model.tokens
        if self._is_first:
            self.positions, self.dropout = model.positions, model.dropout
        if self._is_last:
            self.norm, self.head = model.norm, model.head

    def forward(self, stream: Tensor) -> Tensor:
        """Compute the part of this stage of :meth:`ddp_trainer.train.models.gpt.Gpt.forward`.

        Args:
            stream: Tokens, int64 ``(n, time)``, in the first stage; else the residual stream, float ``(n, time,
                width)``.

        Returns:
            Float logits, ``(n, time, vocabulary)``, in the last stage; else the residual stream.
        """
        if self._is_first:
            times = torch.arange(stream.shape[1], device=stream.device)
            stream = self.dropout(self.tokens(stream) + self.positions(times))
        for block in self.blocks.values():
            stream = cast("Block", block)(stream)
        return self.head(self.norm(stream), self.tokens.weight) if self._is_last else stream
