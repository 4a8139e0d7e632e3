"""Models without memory: the numbers that are made later are those that one process draws, or there is no recording."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.train.deferred_init.op_recording import CannotRecord, DeferredInit
from ddp_trainer.train.loop.run_context import draw_model
from ddp_trainer.train.models.gpt import Gpt
from tests.support.train_builders import Lines

SIDE = 24
LARGE = SIDE * SIDE * 4
"""Bytes of the smallest weight that the models here let be recorded."""


def linear() -> nn.Linear:
    return nn.Linear(SIDE, SIDE)


def gpt() -> nn.Module:
    return Gpt(vocabulary=32, window=SIDE, layers=2, heads=2, width=SIDE)


def changed(change: Callable[[Tensor], object]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = linear()
        with torch.no_grad():
            change(model.weight)
        return model

    return build


def tied() -> nn.Module:
    embedding, output = nn.Embedding(SIDE, SIDE, padding_idx=3), linear()
    output.weight = embedding.weight
    return nn.Sequential(embedding, nn.LayerNorm(SIDE), output)


def scaled() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(SIDE, SIDE) * 0.02)
    model.register_buffer("mask", torch.tril(torch.ones(SIDE, SIDE)).view(1, SIDE, SIDE))
    return model


def added() -> nn.Module:
    first, second = linear(), linear()
    with torch.no_grad():
        second.weight.add_(first.weight)
        first.weight.mul_(torch.tensor(3.0))
    return nn.Sequential(first, second)


def in_other_types() -> nn.Module:
    torch.set_default_dtype(torch.float64)
    try:
        model = linear()
    finally:
        torch.set_default_dtype(torch.float32)
    return nn.Sequential(model, nn.Linear(SIDE, 2 * SIDE).bfloat16())


def generated() -> nn.Module:
    generator, model = torch.Generator().manual_seed(5), linear()
    nn.init.normal_(model.weight, generator=generator)
    nn.init.normal_(model.weight[:9], generator=generator)
    return model


def collected() -> nn.Module:
    """Of which a part is not among the youngest objects any more."""
    first = linear()
    gc.collect()
    return nn.Sequential(first, linear())


def rebuilt(weight: Tensor) -> None:
    """Torch lays one of these factors out otherwise where there is no memory."""
    left, middle, right = torch.linalg.svd(weight)
    weight.copy_(left @ torch.diag(middle) @ right)


RECORDED = {
    "gpt": gpt,
    "linear": linear,
    "tied": tied,
    "scaled": scaled,
    "added": added,
    "types": in_other_types,
    "generator": generated,
    "collected": collected,
    "trunc_normal": changed(lambda weight: nn.init.trunc_normal_(weight, std=0.02, a=-0.02, b=0.02)),
    "orthogonal": changed(nn.init.orthogonal_),
    "svd": changed(rebuilt),
    "convolution": lambda: nn.Sequential(nn.Conv2d(16, SIDE, 3), nn.BatchNorm2d(SIDE)),
    "channels last": lambda: nn.Conv2d(16, SIDE, 3).to(memory_format=torch.channels_last),
    "copied": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(SIDE, 2, SIDE), 2, enable_nested_tensor=False),
}


def held_twice() -> nn.Module:
    model = linear()
    model.rows = model.weight.detach()[:2]
    return model


def from_numpy(weight: Tensor) -> None:
    numbers = np.random.standard_normal((SIDE, SIDE))  # noqa: NPY002 - the generator that a run puts to a state
    weight.copy_(torch.from_numpy(numbers))


def tagged() -> nn.Module:
    model = linear()
    model.weight.decays = False  # type: ignore[attr-defined] # a tag of the user's
    return model


def hooked() -> nn.Module:
    model = linear()
    model.bias.register_hook(torch.abs)
    return model


def computed() -> nn.Module:
    model = linear()
    model.twice = model.weight * 2  # type: ignore[assignment] # a plain attribute
    return model


class Special(nn.Parameter):
    """A kind of weight of the user's."""


def special() -> nn.Module:
    model = nn.Module()
    model.weight = Special(torch.randn(SIDE, SIDE))
    return model


def conjugate() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(SIDE, SIDE, dtype=torch.complex64).conj())
    return model


NOT_RECORDED = {
    "left without memory": lambda: linear().to_empty(device="meta"),
    "moved to where it is": changed(lambda weight: weight.cpu().mul_(3)),
    "tagged": tagged,
    "hooked": hooked,
    "computed": computed,
    "special": special,
    "conjugate": conjugate,
    "weakly held": lambda: nn.LSTM(SIDE, SIDE),
    "numpy": changed(from_numpy),
    "into memory": changed(lambda weight: np.copyto(weight.numpy(), 1.0)),
    "one number": changed(lambda weight: weight.__setitem__((2, 3), 1.0)),
    "sparse": changed(lambda weight: nn.init.sparse_(weight, 0.3)),
    "held twice": held_twice,
    "never written": lambda: nn.Sequential(nn.Linear(2, 2), _unwritten()),
}


def _unwritten() -> nn.Module:
    model = nn.Module()
    model.weight = nn.Parameter(torch.empty(SIDE, SIDE))
    return model


@pytest.mark.parametrize("build", RECORDED.values(), ids=RECORDED)
def test_recorded_numbers_are_those_of_one_process(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    wanted = build()
    drawn_next = torch.rand(2)
    torch.manual_seed(3)
    with (recording := DeferredInit(LARGE)):
        model = build()
    assert torch.equal(torch.rand(2), drawn_next)
    recipes = recording.recipes(model)
    assert recipes
    weights = dict(model.named_parameters(remove_duplicate=False))
    for name, weight in wanted.named_parameters(remove_duplicate=False):
        own = weights[name]
        assert own.is_meta is (own in recipes)
        assert own.is_meta is (weight.numel() * weight.element_size() >= LARGE)
        made = recipes[own].numbers() if own in recipes else own.detach()
        assert made.dtype == weight.dtype
        assert made.stride() == weight.stride()
        assert torch.equal(made, weight)
    for name, buffer in wanted.named_buffers():
        assert torch.equal(model.get_buffer(name), buffer)


@pytest.mark.parametrize("build", NOT_RECORDED.values(), ids=NOT_RECORDED)
def test_what_cannot_be_made_again_is_not_recorded(build: Callable[[], nn.Module]) -> None:
    def recorded() -> None:
        with (recording := DeferredInit(LARGE)):
            model = build()
        recording.recipes(model)

    with pytest.raises((CannotRecord, TypeError, RuntimeError)):
        recorded()


def test_an_error_that_the_model_swallows_ends_the_recording() -> None:
    with (recording := DeferredInit(LARGE)):
        model = linear()
        with pytest.raises(CannotRecord):
            model.weight.detach().numpy()
    with pytest.raises(CannotRecord, match="numpy was called"):
        recording.recipes(model)


class Wide(Lines):
    """A layer of a hundred kilobytes, with numbers from NumPy where asked for."""

    def __init__(self, *, from_numpy: bool) -> None:
        super().__init__()
        self._from_numpy = from_numpy
        self._mask: Tensor | None = None

    def model(self) -> nn.Module:
        model = nn.Linear(160, 160)
        self._mask = torch.ones(160, 160).tril() if self._mask is None else self._mask
        model.register_buffer("mask", self._mask)
        if self._from_numpy:
            numbers = np.random.standard_normal((160, 160))  # noqa: NPY002 - as above
            with torch.no_grad():
                model.weight.copy_(torch.from_numpy(numbers))
        return model


@pytest.mark.parametrize("from_numpy", [False, True])
def test_a_model_is_drawn_whole_where_it_must_be_and_says_why(from_numpy: bool) -> None:
    task = Wide(from_numpy=from_numpy)
    wanted, drawn = draw_model(task, 7).model, draw_model(task, 7, spreads=True)
    assert bool(drawn.why_whole) is from_numpy
    assert bool(drawn.recipes) is not from_numpy
    weight = next(drawn.model.parameters())
    made = drawn.recipes[weight].numbers() if weight in drawn.recipes else weight
    assert torch.equal(made, next(wanted.parameters()))
    assert torch.equal(drawn.model.get_buffer("mask"), torch.ones(160, 160).tril()), "as it was kept from the recording"
