"""What is done to a model block by block: activations that are computed again, and compiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Recompute, parse_recompute
from ddp_trainer.train.transforms.activation_checkpointing import _compute_intensive_ops, checkpoint_activations
from ddp_trainer.train.transforms.blocks import blocks
from ddp_trainer.train.transforms.compilation import compile_blocks
from ddp_trainer.train.utils.errors import BadConfig


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"compile_blocks": True}, "--compile-blocks was given without --compile. Add --compile."),
        ({"recompute": 2}, "--recompute is 2, and nothing is computed again without --activation-checkpointing."),
    ],
)
def test_half_of_what_is_needed_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        Config(**options)


def test_a_number_of_blocks_is_one_of_some() -> None:
    with pytest.raises(BadConfig, match=r"--recompute is '0'. Give all, cheap, or N for every N-th block"):
        parse_recompute("0")


class Products(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("recompute", "products", "activations"), [(Recompute.ALL, 4, 4), (Recompute.CHEAP, 0, 4), (2, 2, 2), (5, 0, 0)]
)
def test_as_much_is_computed_again_as_was_asked_for(
    recompute: Recompute | int, products: int, activations: int
) -> None:
    calls: list[int] = []

    class Layer(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
            calls.append(1)
            return super().forward(input).relu()

    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(3, 3) for _ in range(4)))
    expected = torch.autograd.grad(model(torch.ones(2, 3)).sum(), list(model.parameters()))
    checkpoint_activations(model, recompute)
    output = model(torch.ones(2, 3)).sum()
    calls.clear()
    with Products() as counted:
        found = torch.autograd.grad(output, list(model.parameters()))
    assert (counted.count, len(calls)) == (products, activations)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_operations_whose_results_are_kept_are_those_that_torch_has() -> None:
    assert {torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.convolution.default} < set(
        _compute_intensive_ops()
    )


def test_a_block_that_cannot_be_compiled_says_so_and_computes_on_request() -> None:
    """With a compiler of torch's own tests, which knows no ReLU."""
    broken = "relu_compile_error_TESTING_ONLY"
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    inputs = torch.ones(1, 2)
    expected = model(inputs)
    messages: list[str] = []
    compile_blocks(blocks(model), backend=broken, alarm=messages.append)
    assert [torch.equal(model(inputs), expected) for _ in range(2)] == [True, True]
    assert [
        message.startswith("A block of the model could not be compiled, and is trained unc") for message in messages
    ] == [True]


def test_a_block_that_cannot_be_compiled_ends_the_run() -> None:
    class Layer(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
            return torch.relu(super().forward(input))

    model = nn.Sequential(Layer(2, 2))
    compile_blocks(blocks(model), backend="relu_compile_error_TESTING_ONLY", alarm=None)
    with pytest.raises(BadConfig, match="A block of the model could not be compiled: "):
        model(torch.ones(1, 2))
