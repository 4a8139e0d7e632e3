"""The GPT cut into stages of a pipeline: a run of layers each, the embedding in the first, the output in the last.

A stage has the names of the whole model for what it holds, so checkpoints know nothing of stages. The token embedding,
being the output layer as well, is in the first and in the last one.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from ddp_trainer.common.model_constraints import of_stages
from ddp_trainer.train.data.batch_plan import cut
from ddp_trainer.train.models.gpt_layers import Block, GptParts
from ddp_trainer.train.utils.errors import BadConfig


class GptStage(nn.Module):
    """Takes what the stage before gave, the first one tokens; gives the stream, the last one logits."""

    def __init__(self, model: GptParts, index: int, count: int) -> None:
        """Stage ``index`` of ``count``; shares its weights with the model.

        Raises:
            BadConfig: some stage would have no layer.
        """
        super().__init__()
        layers = len(model.blocks)
        for misfit in of_stages(count, layers=layers):
            raise BadConfig(misfit.sentence, hint=misfit.help)
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
        """This stage's part of :meth:`ddp_trainer.train.models.gpt.Gpt.forward`."""
        if self._is_first:
            times = torch.arange(stream.shape[1], device=stream.device)
            stream = self.dropout(self.tokens(stream) + self.positions(times))
        for block in self.blocks.values():
            stream = cast("Block", block)(stream)
        return self.head(self.norm(stream), self.tokens.weight) if self._is_last else stream
