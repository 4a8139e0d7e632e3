"""The optimizer: its rate, clipping, loss scale, and gradients that are not finite."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.common.trainer_options import OptimizerName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName, LrScaling, ScheduleName
from ddp_trainer.train.optim.optimizer import LossScale, OptimizerWrapper, lr_scale, nonfinite_flag, rate_factor
from tests.support.train_builders import Lines


def take(model: nn.Module, optimization: OptimizerWrapper, step: int = 0) -> None:
    optimization.zero_grad()
    torch.autograd.backward(model(torch.ones(4, 3)).square().sum())
    optimization.check_grads()
    optimization.step(step)


@pytest.mark.parametrize("optimizer", OptimizerName)
def test_every_kernel_takes_the_same_step(optimizer: OptimizerName) -> None:
    weights = []
    for kernel in KernelName:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        config = Config(optimizer=optimizer, optimizer_kernel=kernel, warmup_steps=0)
        take(model, OptimizerWrapper.build(Lines(), model, config, 10))
        weights.append(model.weight.detach())
    assert all(torch.allclose(weight, weights[0], rtol=1e-5) for weight in weights)


@pytest.mark.parametrize(("rule", "factor"), [(LrScaling.LINEAR, 4.0), (LrScaling.SQRT, 2.0)])
def test_the_rate_follows_the_batch_on_request_alone(rule: LrScaling, factor: float) -> None:
    config = Config(global_batch=64, lr_scaling=rule, lr_reference_batch=16, warmup_steps=0)
    assert lr_scale(config) == factor
    assert lr_scale(Config(global_batch=1024)) == 1.0
    model = nn.Linear(1, 1)
    optimization = OptimizerWrapper.build(Lines(), model, config, 10)
    torch.autograd.backward(model(torch.ones(1, 1)).sum())
    optimization.step(0)
    assert optimization.learning_rate == pytest.approx(factor * config.learning_rate)


def test_the_rate_rises_then_falls_to_nothing() -> None:
    factors = [rate_factor(ScheduleName.LINEAR, step, 2, 12) for step in (*range(12), 20)]
    assert factors == pytest.approx([0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0])
    factors = [rate_factor(ScheduleName.COSINE, step, 4, 20) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == sorted(factors[4:], reverse=True)
    assert 0 < factors[-1] < 0.05
    assert rate_factor(ScheduleName.CONSTANT, 19, 4, 20) == 1.0
    assert rate_factor(ScheduleName.COSINE, 7, 0, 3) == pytest.approx(0, abs=1e-12)


def test_moments_copied_in_the_background_are_used_only_once_they_are_copied(tmp_path: Path) -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10) for model in models)
    take(models[0], first)
    models[1].load_state_dict(models[0].state_dict())
    torch.save(first.state_dict(), tmp_path / "moments")
    mapped = torch.load(tmp_path / "moments", mmap=True, weights_only=True)
    second.load_state_dict(mapped)
    second.copy_host_tensors(ThreadPoolExecutor(1))
    for name, moment in second.state_dict()["state"][0].items():
        assert moment.data_ptr() != mapped["state"][0][name].data_ptr()
    take(models[0], first)
    take(models[1], second)
    assert torch.equal(models[0].weight, models[1].weight)


def test_a_tasks_own_optimizer_goes_before_the_flags() -> None:
    class Own(Lines):
        def optimizer(self, parameters: object) -> torch.optim.Optimizer:
            return torch.optim.Adagrad(parameters, lr=0.5)  # type: ignore[arg-type]

    optimization = OptimizerWrapper.build(Own(), nn.Linear(1, 1), Config(warmup_steps=0), 10)
    assert isinstance(optimization.optimizer, torch.optim.Adagrad)
    optimization.step(0)
    assert optimization.learning_rate == 0.5


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
        model = nn.Linear(3, 2)
        config = Config(optimizer=name, optimizer_kernel=KernelName(kernel), warmup_steps=0, learning_rate=0.1)
        return model, OptimizerWrapper.build(Lines(), model, config, 10)

    first, before = built(saved)
    take(first, before)
    second, after = built(loaded)
    second.load_state_dict(first.state_dict())
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    assert after.optimizer.param_groups[0]["fused"] is (loaded in {"fused", "auto"})
    take(first, before, 1)
    take(second, after, 1)
    torch.testing.assert_close(second.state_dict(), first.state_dict())


CPU = torch.device("cpu")


def test_a_step_whose_vote_was_never_heard_leaves_the_loss_scale_usable() -> None:
    model, scale = nn.Linear(1, 1), LossScale(CPU)
    optimization = OptimizerWrapper.build(Lines(), model, Config(warmup_steps=0), 10, scale)

    def check_grads(size: float) -> Tensor:
        optimization.zero_grad()
        torch.autograd.backward(scale.up((model(torch.ones(1, 1)) * size).sum()))
        return optimization.check_grads()

    assert check_grads(1e38) != 0
    optimization.discard_step()  # a peer was lost
    assert all(weight.grad is None for weight in model.parameters())
    assert check_grads(1.0) == 0
    optimization.step(0)
    assert scale.value == 65536


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
                torch.autograd.backward(scale.up(model(torch.ones(1, 1)).sum()))
            assert optimization.check_grads() == 0
            optimization.step(step)
        scales.append(scale.value)
    assert scales == [131072, 131072]


def test_a_loss_scale_of_one_is_not_what_overflows() -> None:
    scale = LossScale(CPU)
    scale.up(torch.ones(()))
    assert [scale.back_off() for _ in range(16)] == [True] * 16
    assert scale.value == 1
    assert not scale.back_off()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_gradient_that_is_not_finite_is_found_wherever_it_is(bad: float, dtype: torch.dtype) -> None:
    gradients = [torch.ones(3, dtype=dtype), torch.ones(2, 2, dtype=dtype)]
    before = [gradient.clone() for gradient in gradients]
    assert nonfinite_flag(gradients) == 0
    assert all(torch.equal(one, other) for one, other in zip(gradients, before, strict=True))
    gradients[1][1, 0] = bad
    assert nonfinite_flag(gradients) != 0
    assert nonfinite_flag(gradients, nn.utils.get_total_norm(gradients)) != 0


def test_no_gradients_have_no_flaw() -> None:
    assert nonfinite_flag([]) == 0
