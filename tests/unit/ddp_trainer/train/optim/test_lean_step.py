"""What a step leaves out of torch's ways must not be missed, and torch's parts must still be those that are known."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.parallel import strategy
from ddp_trainer.train.parallel.strategy import ScaledBackward
from tests.support.train_builders import Lines


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


def test_gradients_that_were_fine_leave_an_answer_that_later_flaws_do_not_hide_behind() -> None:
    model = nn.Linear(2, 1)
    optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10)
    for step, factor in enumerate([1.0, 1.0, float("inf"), 1.0, 1.0]):
        optimization.zero_grad()
        torch.autograd.backward((model(torch.ones(3, 2)) * factor).sum())
        flaw = optimization.check_grads().item()
        assert (flaw == 0) == (factor == 1.0)
        if flaw == 0:
            optimization.step(step)


@pytest.mark.parametrize("name", OptimizerName)
@pytest.mark.parametrize(("saved", "loaded"), [("loop", "fused"), ("fused", "loop"), ("foreach", "auto")])
def test_a_run_goes_on_with_the_kernel_of_its_own_flags(name: OptimizerName, saved: str, loaded: str) -> None:
    def built(kernel: str) -> tuple[nn.Module, OptimizerWrapper]:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        config = Config(optimizer=name, optimizer_kernel=KernelName(kernel), warmup_steps=0, learning_rate=0.1)
        return model, OptimizerWrapper.build(Lines(), model, config, 10)

    def take(model: nn.Module, optimization: OptimizerWrapper, step: int) -> None:
        optimization.zero_grad()
        torch.autograd.backward(model(torch.ones(3, 2)).square().sum())
        optimization.check_grads()
        optimization.step(step)

    first, before = built(saved)
    take(first, before, 0)
    second, after = built(loaded)
    second.load_state_dict(first.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert after.optimizer.param_groups[0]["fused"] is (loaded in {"fused", "auto"})
    take(first, before, 1)
    take(second, after, 1)
    torch.testing.assert_close(second.state_dict(), first.state_dict())
