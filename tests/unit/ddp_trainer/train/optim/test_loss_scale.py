"""The loss scale of fp16: after an overflow, in a checkpoint, on a stage without weights to train."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.optim.optimizer import LossScale, OptimizerWrapper
from tests.support.train_builders import Lines

CPU = torch.device("cpu")


def scale_of(optimization: OptimizerWrapper) -> LossScale:
    assert optimization.loss_scale is not None
    return optimization.loss_scale


def a_step(optimization: OptimizerWrapper, model: nn.Module, size: float) -> Tensor:
    optimization.zero_grad()
    torch.autograd.backward(scale_of(optimization).up((model(torch.ones(1, 1)) * size).sum()))
    return optimization.check_grads()


def test_a_loss_scale_is_halved_by_an_overflow_and_survives_a_checkpoint() -> None:
    model = nn.Linear(1, 1)
    first = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    assert a_step(first, model, 1.0) == 0
    weight = next(model.parameters())
    assert weight.grad is not None
    assert weight.grad.item() == 1.0  # scaled up, and down again
    first.step(0)
    assert a_step(first, model, 1e38) != 0
    assert scale_of(first).back_off()
    assert scale_of(first).value == 32768
    second = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    second.load_loss_scale(first.loss_scale_state())
    assert scale_of(second).value == 32768
    assert a_step(second, model, 1.0) == 0
    second.step(1)


def test_a_step_whose_vote_was_never_heard_leaves_the_loss_scale_usable() -> None:
    model = nn.Linear(1, 1)
    optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, LossScale(CPU))
    assert a_step(optimization, model, 1e38) != 0
    optimization.discard_step()  # a peer was lost
    assert all(weight.grad is None for weight in model.parameters())
    assert a_step(optimization, model, 1.0) == 0
    optimization.step(0)
    assert scale_of(optimization).value == 65536


def test_a_stage_that_learns_nothing_scales_as_the_others_do() -> None:
    scales = []
    for learns in (True, False):
        model = nn.Linear(1, 1).requires_grad_(learns)
        scale = LossScale(CPU)
        scale.load_state_dict({**scale.state_dict(), "growth_interval": 2})
        optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, scale)
        for step in range(2):
            optimization.zero_grad()
            if learns:
                torch.autograd.backward(scale_of(optimization).up(model(torch.ones(1, 1)).sum()))
            assert optimization.check_grads() == 0
            optimization.step(step)
        scales.append(scale_of(optimization).value)
    assert scales == [131072, 131072]


def test_a_loss_scale_of_one_is_not_what_overflows() -> None:
    scale = LossScale(CPU)
    scale.up(torch.ones(()))
    assert [scale.back_off() for _ in range(16)] == [True] * 16
    assert scale.value == 1
    assert not scale.back_off()


def test_other_precisions_have_no_loss_scale() -> None:
    optimization = OptimizerWrapper.build(Lines(), nn.Linear(1, 1), Config(), 10)
    assert (optimization.loss_scale, optimization.loss_scale_state()) == (None, None)
    optimization.load_loss_scale({"scale": 2.0})
