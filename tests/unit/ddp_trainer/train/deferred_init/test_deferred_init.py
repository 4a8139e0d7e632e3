"""Models without first weights, which are filled by a state or, where it lacks some, by the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.train import Config, run
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.deferred_init.skip_init import SkipInit, init_weights, is_deferred, materialize
from ddp_trainer.train.utils.errors import BadTask
from ddp_workloads.text import Text
from tests.support.train_builders import HERE, Lines


class Rotary(nn.Module):
    """Weights of every usual kind, and a buffer that no state dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, padding_idx=0)
        self.convolution, self.norm, self.head = nn.Conv1d(4, 4, 3), nn.LayerNorm(4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.head.weight.data.normal_(mean=0.0, std=0.02)
        self.position = nn.Parameter(torch.empty(4, 4))
        nn.init.xavier_normal_(self.position).data.mul_(0.5)
        self.position.data[0] = 0
        self.register_buffer("angles", torch.arange(4).float() ** -0.5, persistent=False)


def linear_with(change: Callable[[nn.Linear], object]) -> Callable[[], nn.Module]:
    """Return a factory of a layer, which ``change`` is applied to."""

    def build() -> nn.Module:
        layer = nn.Linear(4, 4)
        change(layer)
        return layer

    return build


def copied() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, copy.deepcopy(layer))


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.empty(4))
        self.weight.data.normal_(generator=generator)
        self.register_buffer("features", torch.randn(4, generator=generator), persistent=False)


class ForkedGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            self.weight = nn.Parameter(torch.empty(4))
            nn.init.normal_(self.weight)
            self.register_buffer("features", torch.randn(4), persistent=False)


def test_all_but_the_weights_is_built_as_usual() -> None:
    torch.manual_seed(3)
    usual = Rotary()
    torch.manual_seed(3)
    with SkipInit() as skips:
        skipped = Rotary()
    assert skips.is_exact(skipped)
    assert torch.equal(skipped.get_buffer("angles"), usual.get_buffer("angles"))
    assert skipped.head.weight is skipped.embedding.weight
    skipped.load_state_dict(usual.state_dict())
    assert all(torch.equal(one, other) for one, other in zip(skipped.parameters(), usual.parameters(), strict=True))


def test_weights_are_not_filled() -> None:
    values = torch.full((4,), 7.0)
    with SkipInit():
        weight = nn.Parameter(values)
        nn.init.zeros_(weight)
        weight.data.normal_()
        weight.data[:2] = 1
    assert values.tolist() == [7.0] * 4


BUFFERS: dict[str, Callable[[nn.Linear], Tensor]] = {
    "drawn": lambda _: torch.randn(4),
    "of the weights": lambda layer: layer.weight.data.abs().max(),
    "the weights": lambda layer: layer.weight.detach(),
}
ATTRIBUTES: dict[str, Callable[[nn.Linear], object]] = {
    "a copy": lambda layer: layer.weight.detach().clone(),
    "a view": lambda layer: layer.weight.data,
    "a weight": lambda _: nn.Parameter(torch.randn(4)),
    "a model": lambda _: [nn.Linear(4, 4)],
}


@pytest.mark.parametrize(
    "model",
    [
        *(linear_with(lambda at, value=value: at.register_buffer("b", value(at), False)) for value in BUFFERS.values()),
        *(linear_with(lambda at, value=value: setattr(at, "kept", value(at))) for value in ATTRIBUTES.values()),
        linear_with(lambda layer: nn.init.trunc_normal_(layer.weight)),
        *(copied, OwnGenerator, ForkedGenerator),
    ],
    ids=[*BUFFERS, *ATTRIBUTES, "truncated", "copied", "own generator", "forked generator"],
)
def test_a_model_that_depends_on_its_first_weights_is_not_exact(model: Callable[[], nn.Module]) -> None:
    with SkipInit() as skips:
        built = model()
    assert not skips.is_exact(built)


CPU = torch.device("cpu")
CONFIG = Config(epochs=1, global_batch=4, warmup_steps=0)


class Named(Lines):
    """A task with ``init_weight``; two layers share a weight."""

    calls: ClassVar[list[str]] = []

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
        model[2].weight = model[0].weight
        return model

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        self.calls.append(name)
        if name != "0.bias":
            weight.copy_(torch.randn(weight.shape))


def made(task: Task, *, seed: int = 7, loaded: tuple[str, ...] = ()) -> nn.Module:
    with torch.device("meta"):
        model = task.model()
    assert is_deferred(model)
    materialize(model, CPU)
    init_weights(model, task, seed, loaded)
    return model


def test_a_weight_depends_on_the_seed_and_its_name_alone() -> None:
    first, second, other = made(Named()), made(Named(), loaded=("0.weight",)), made(Named(), seed=8)
    assert torch.equal(first.get_parameter("2.bias"), second.get_parameter("2.bias"))
    assert not torch.equal(first.get_parameter("2.bias"), first.get_parameter("1.bias"))
    assert not torch.equal(first.get_parameter("2.bias"), other.get_parameter("2.bias"))


def test_modules_go_on_sharing_a_weight_and_what_was_not_filled_is_not_a_number() -> None:
    Named.calls.clear()
    model = made(Named(), loaded=("1.running_mean",))
    assert model[2].weight is model[0].weight  # type: ignore[index] # a Sequential
    assert Named.calls.count("0.weight") == 1
    assert "2.weight" not in Named.calls
    assert {name for name, tensor in model.state_dict().items() if tensor.isnan().any()} == {"0.bias", "1.running_mean"}


def test_weights_without_memory_stay_so_where_asked() -> None:
    with torch.device("meta"):
        model = Named().model()
    materialize(model, CPU, without={"0.weight"})
    assert [name for name, tensor in model.named_parameters() if tensor.is_meta] == ["0.weight"]


class Started(Lines):
    """A task that records the weights of each pass."""

    seen: ClassVar[list[Tensor]] = []

    def init_weight(self, model: nn.Module, name: str, weight: Tensor) -> None:
        nn.init.uniform_(weight)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.seen.append(next(model.parameters()).detach().clone())
        return super().losses(model, batch)


@pytest.mark.parametrize("layouts", [None, LayoutRange.parse("replicate=1,shard=1:2")])
def test_one_process_begins_with_the_same_weights_with_and_without_a_layout(layouts: LayoutRange | None) -> None:
    Started.seen.clear()
    run(replace(CONFIG, parallel=layouts), Started(), env=HERE)
    assert torch.equal(Started.seen[0], next(made(Started(), seed=CONFIG.seed).parameters()))


def test_a_model_that_names_its_device_cannot_be_initialized_later() -> None:
    class Placed(Started):
        def model(self) -> nn.Module:
            return nn.Linear(3, 1, device="cpu")

    with pytest.raises(BadTask, match="has an init_weight, and its model has weight on cpu instead of torch's meta"):
        run(CONFIG, Placed(), env=HERE)


def test_the_gpt_for_text_fills_all_of_its_weights() -> None:
    task = object.__new__(Text)  # without a folder of text
    task.name, task._window, task._model = "text/8", 8, "gpt:layers=2,width=32,heads=2"
    weights = dict(made(task).named_parameters())
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert weights["blocks.0.mlp.hidden.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    assert weights["blocks.0.mlp.out.weight"].std().item() == pytest.approx(0.01, rel=0.1)
    assert torch.equal(weights["norm.weight"], torch.ones(32))
