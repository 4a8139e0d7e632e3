"""Which modules are the blocks of a model."""

from __future__ import annotations

import pytest
from torch import nn

from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations
from ddp_trainer.train.transforms.blocks import blocks
from ddp_trainer.train.utils.errors import BadConfig


def test_blocks_are_the_layers_of_a_list_before_those_of_a_sequence() -> None:
    inner = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert blocks(nn.Sequential(inner, nn.ReLU())) == [inner]
    model = nn.Sequential(nn.ModuleList([inner]), nn.Linear(1, 1))
    assert blocks(model) == [inner]
    with pytest.raises(BadConfig, match="finds no blocks in Linear"):
        checkpoint_activations(nn.Linear(1, 1))
