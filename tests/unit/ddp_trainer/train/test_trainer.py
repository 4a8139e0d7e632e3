"""What a run holds on to while it trains."""

from __future__ import annotations

import gc
from typing import ClassVar

import torch
from torch import Tensor, nn

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train import Config, run
from ddp_trainer.train.deferred_init.init_replay import InitRecipe
from tests.support.train_builders import HERE, Lines, Points


def recipes() -> list[object]:
    """All that anything holds."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is InitRecipe]


def test_recipes_are_let_go_of_when_the_model_has_its_weights() -> None:
    others = recipes()

    class Watched(Lines):
        left: ClassVar[list[int]] = []

        def model(self) -> nn.Module:
            return nn.Linear(160, 160)

        def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
            self.left.append(len(recipes()) - len(others))
            return model(batch).square().sum(1)

        def train_samples(self) -> Points:
            return Points(torch.ones(8, 160), None)

        test_samples = train_samples

    # Its layout may spread the model in a larger group, so it is recorded; here one rank has it whole.
    layouts = LayoutRange.parse("replicate=1,shard=1:2")
    run(Config(max_steps=1, global_batch=4, warmup_steps=0, parallel=layouts), Watched(), env=HERE)
    assert set(Watched.left) == {0}
