"""Blocks of a model: which there are, and in which order they are counted."""

from __future__ import annotations

import pytest
from torch import nn

from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.transforms.activation_checkpointing import COMPUTES_AGAIN, checkpoint_activations
from ddp_trainer.train.transforms.blocks import blocks, named_blocks
from ddp_trainer.train.utils.errors import BadConfig


def test_blocks_are_found_by_the_names_of_their_classes_in_order_and_what_lies_in_them_first() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(inner, nn.Linear(2, 3), inner)
    assert named_blocks(model, ["Sequential", "Linear"]) == [inner[0], inner, model[1]]
    with pytest.raises(BadConfig, match=r"'ReLU', and Sequential has no such module .* It has Linear, Sequential\."):
        named_blocks(model, ["ReLU"])


@pytest.mark.parametrize("names", [[], ["Block"]])
def test_every_nth_block_computes_again_whether_blocks_are_named_or_not(names: list[str]) -> None:
    gpt = Gpt(vocabulary=64, window=8, layers=5, heads=2, width=8)
    found = named_blocks(gpt, names) if names else blocks(gpt)
    checkpoint_activations(gpt, 3, found=found)
    assert [vars(block)[COMPUTES_AGAIN] for block in gpt.blocks] == [False, False, True, False, False]
