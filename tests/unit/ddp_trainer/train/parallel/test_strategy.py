"""Backward passes of a step: the mean over all ranks, with and without torch's private engine."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ddp_trainer.train.parallel import strategy
from ddp_trainer.train.parallel.strategy import ScaledBackward


def gradient_of(run: ScaledBackward, dtype: torch.dtype = torch.float32) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 4.0], dtype=dtype, requires_grad=True)
    run((weight * weight)[:2], 8)
    run((weight * weight)[2:], 8)
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_backward_pass_gives_the_gradient_of_the_mean_over_the_whole_step(ranks: int, dtype: torch.dtype) -> None:
    assert gradient_of(ScaledBackward(ranks), dtype).tolist() == [ranks / 4, ranks / 2, ranks * 1.0]


def test_the_engine_is_used_as_torch_has_it() -> None:
    # Fails when a new version of torch has changed it: passes then cost more, and nothing else happens.
    assert strategy._engine() is not None


def test_without_the_engine_the_gradient_is_the_same() -> None:
    run = ScaledBackward(4)
    run._run = None
    assert torch.equal(gradient_of(run), gradient_of(ScaledBackward(4)))
