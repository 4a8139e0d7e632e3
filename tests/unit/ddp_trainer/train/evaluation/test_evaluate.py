"""Passes of an evaluation: their size, precision and memory layout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train import Config, run
from tests.support.train_builders import HERE, Lines, Points


class Images(Lines):
    """Records each forward pass: whether it trains, its samples, its dtype, and whether its input is channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: set[tuple[bool, int, torch.dtype, bool]] = set()

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.LazyLinear(1))
        model(torch.zeros(1, 3, 2, 2))
        model[0].register_forward_hook(self._record)
        return model

    def _record(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        is_last = inputs[0].is_contiguous(memory_format=torch.channels_last)
        self.passes.add((module.training, len(output), output.dtype, is_last))

    def train_samples(self) -> Points:
        return Points(torch.rand(8, 3, 2, 2), None)

    def test_samples(self) -> Points:
        return Points(torch.rand(6, 3, 2, 2), None)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).float().square().squeeze(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self.losses(model, batch).sum()}


def test_an_evaluation_makes_the_passes_of_training() -> None:
    task = Images()
    run(
        Config(
            epochs=1,
            global_batch=8,
            batch_slices=2,
            micro_batch=2,
            precision=PrecisionName.BF16,
            channels_last=True,
            warmup_steps=0,
        ),
        task,
        env=HERE,
    )
    assert task.passes == {(True, 2, torch.bfloat16, True), (False, 2, torch.bfloat16, True)}


def test_an_evaluation_without_micro_batches_takes_all_samples_of_a_small_test_set_at_once() -> None:
    task = Images()
    run(Config(epochs=1, global_batch=8, batch_slices=2, warmup_steps=0), task, env=HERE)
    assert (False, 6, torch.float32, False) in task.passes
