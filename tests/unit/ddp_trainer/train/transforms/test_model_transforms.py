"""Activation checkpointing, compilation, precision and determinism of a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ddp_trainer.common.constants import Exit
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Recompute, parse_recompute
from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations
from ddp_trainer.train.transforms.blocks import blocks
from ddp_trainer.train.transforms.compilation import compile_blocks
from ddp_trainer.train.transforms.model_transforms import channels_last
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.programs import captured


def test_images_are_laid_out_as_convolutions_prefer() -> None:
    images, labels = channels_last((torch.ones(2, 3, 4, 4), torch.ones(2)))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert labels.shape == (2,)
    assert channels_last({"a": [torch.ones(1, 2, 2, 2)]})["a"][0].is_contiguous(memory_format=torch.channels_last)


def test_blocks_are_the_layers_of_a_list_before_those_of_a_sequence() -> None:
    inner = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    assert blocks(nn.Sequential(inner, nn.ReLU())) == [inner]
    assert blocks(nn.Sequential(nn.ModuleList([inner]), nn.Linear(1, 1))) == [inner]
    with pytest.raises(BadConfig, match="finds no blocks in Linear"):
        checkpoint_activations(nn.Linear(1, 1))


def test_options_of_missing_options_and_wrong_numbers_of_blocks_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"--compile-blocks was given without --compile\. Add --compile\."):
        Config(compile_blocks=True)
    with pytest.raises(BadConfig, match=r"--recompute is 2, and nothing is computed again without --activation-check"):
        Config(recompute=2)
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
def test_only_what_was_asked_for_is_computed_again(recompute: Recompute | int, products: int, activations: int) -> None:
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


BROKEN = "relu_compile_error_TESTING_ONLY"
"""A backend of torch's own tests that cannot compile a ReLU."""


def test_a_block_that_cannot_be_compiled_is_trained_uncompiled_on_request() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    inputs = torch.ones(1, 2)
    expected = model(inputs)
    messages: list[str] = []
    compile_blocks(blocks(model), backend=BROKEN, alarm=messages.append)
    assert [torch.equal(model(inputs), expected) for _ in range(2)] == [True, True]
    [message] = messages
    assert message.startswith("A block of the model could not be compiled, and is trained unc")


def test_a_block_that_cannot_be_compiled_ends_the_run() -> None:
    class Layer(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
            return torch.relu(super().forward(input))

    model = nn.Sequential(Layer(2, 2))
    compile_blocks(blocks(model), backend=BROKEN, alarm=None)
    with pytest.raises(BadConfig, match="A block of the model could not be compiled: "):
        model(torch.ones(1, 2))


COMPILED = ["--max-steps", "3", "--log-steps", "1", "--log-json", "--compile"]


def train(flags: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_trainer", "train", *flags]
    return captured(command, env={**os.environ, **env}, timeout=200)


def test_a_compiled_model_trains() -> None:
    done = train([*COMPILED, "--compile-backend", "aot_eager"])
    assert done.returncode == 0, done.stderr
    assert '"event": "summary"' in done.stdout


@pytest.mark.parametrize("fallback", [False, True])
def test_a_model_that_cannot_be_compiled_says_so_and_trains_on_request(fallback: bool, tmp_path: Path) -> None:
    """The C++ compiler is missing."""
    missing = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = train([*COMPILED, *(["--compile-fallback"] if fallback else [])], **missing)
    output = done.stdout if fallback else done.stderr
    assert done.returncode == (0 if fallback else Exit.USAGE), done.stderr
    assert ("and is trained uncompiled: " if fallback else "error: The model could not be compiled: ") in output
    assert fallback or len(done.stderr.splitlines()) == 1


def test_torch_still_lets_determinism_be_asked_for_without_its_compiler() -> None:
    program = (
        "import sys, torch\n"
        "from ddp_trainer.train.transforms.model_transforms import be_deterministic\n"
        "be_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_neither_options_nor_fp16_import_the_compiler() -> None:
    program = (
        "import sys\n"
        "from ddp_trainer.train.transforms import precision\n"
        "from ddp_trainer.train.cli import main\n"
        "precision._cpu_has_fp16 = lambda: True\n"
        "flags = ['--precision', 'fp16', '--activation-checkpointing', '--channels-last', '--deterministic']\n"
        "assert main(['--max-steps', '2', '--clip-norm', '1', '--gc-steps', '1', *flags]) == 0\n"
        "assert 'torch._dynamo' not in sys.modules, 'the compiler was imported'\n"
    )
    done = captured([sys.executable, "-c", program], timeout=120)
    assert done.returncode == 0, done.stderr
