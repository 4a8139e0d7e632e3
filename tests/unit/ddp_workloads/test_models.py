"""Models by name: what they are, what they count, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Recompute
from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations
from ddp_trainer.train.transforms.hfu import flops, recompute_ratio, tokens
from ddp_trainer.train.utils.errors import BadConfig
from ddp_workloads.gpt import Gpt
from ddp_workloads.model_registry import MODELS, build

IMAGES = {"channels": 3, "side": 64, "classes": 10}
TEXT = {"vocabulary": 256, "window": 16}


def weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(("name", "published"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_a_resnet_has_as_many_weights_as_was_published(name: str, published: int) -> None:
    assert weights(build(name, channels=3, side=224, classes=1000)) == published


def test_a_resnets_weights_have_the_names_that_other_peoples_checkpoints_use() -> None:
    names = build("resnet50", **IMAGES).state_dict().keys()
    assert {"conv1.weight", "layer1.0.downsample.1.running_mean", "layer4.2.conv3.weight", "fc.bias"} <= set(names)
    assert not any("downsample" in name for name in build("resnet18", **IMAGES).state_dict() if "layer1" in name)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet18"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_model_of_images_takes_them_flat_or_not(name: str, flat: bool) -> None:
    images = torch.zeros(2, 3, 64, 64)
    assert build(name, **IMAGES)(images.flatten(1) if flat else images).shape == (2, 10)


def test_every_model_learns_from_one_sample_alone() -> None:
    for name in MODELS:
        facts = TEXT if name == "gpt" else IMAGES
        model = build(name, **facts)
        one = torch.zeros(1, 16, dtype=torch.int64) if name == "gpt" else torch.rand(1, 3, 64, 64)
        model(one).sum().backward()
        assert all(weight.grad is not None for weight in model.parameters()), name


def test_the_perceptron_of_the_digits_has_the_size_it_always_had() -> None:
    model = build("mlp", channels=1, side=8, classes=10)
    assert weights(model) == 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10
    assert set(model.state_dict()) == {f"{place}.{kind}" for place in (0, 3, 6) for kind in ("weight", "bias")}


def test_options_change_the_shape() -> None:
    gpt = build("gpt:layers=2,heads=2,width=32,dropout=0.5", **TEXT)
    assert isinstance(gpt, Gpt)
    assert (len(gpt.blocks), gpt.tokens.weight.shape, gpt.dropout.p) == (2, (256, 32), 0.5)


@pytest.mark.parametrize(
    ("choice", "facts", "sentence"),
    [
        ("resnet19", IMAGES, "There is no model 'resnet19'. Did you mean resnet18?"),
        ("gpt", IMAGES, "needs vocabulary and window, and the samples of this task have none. Give one of mlp, cnn"),
        ("gpt:layer=2", TEXT, "--model is gpt:layer=2, and the model has no option 'layer'. Did you mean layers?"),
        ("gpt:window=2", TEXT, "has no option 'window'. It has layers, heads, width, dropout."),
        ("resnet18:zzz=1", IMAGES, "It has no options."),
        ("gpt:layers=two", TEXT, "--model is gpt:layers=two, with 'layers=two'. Give layers= a whole number from 0."),
        ("gpt:dropout=nan", TEXT, "Give dropout= a number from 0."),
        ("gpt:layers=0", TEXT, "The model's layers is 0. Give 1 or more."),
        ("gpt:dropout=1", TEXT, "The model's dropout is 1. Give a number from 0 to less than 1."),
        ("gpt:width=130", TEXT, "The model's width 130 cannot be divided among 4 heads."),
        ("resnet18", {**IMAGES, "side": 32}, "The model's side is 32. Give 33 or more."),
    ],
)
def test_a_wrong_model_is_refused_with_the_way_out(choice: str, facts: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(sentence)):
        build(choice, **facts)


def test_a_gpt_counts_its_weights_and_its_operations() -> None:
    gpt = Gpt(vocabulary=256, window=16, layers=3, heads=4, width=64)
    layer = 2 * 64 + 64 * 3 * 64 + 64 * 64 + 64 * 4 * 64 + 4 * 64 * 64
    count = 256 * 64 + 16 * 64 + 3 * layer + 64
    assert gpt.parameter_count() == weights(gpt) == count
    assert gpt.flops_per_sample() == flops(gpt) == 16 * (6 * (count - 16 * 64) + 12 * 3 * 64 * 16)
    assert tokens(gpt) == 16
    assert flops(nn.Linear(1, 1)) is tokens(nn.Linear(1, 1)) is None


def counted_operations(gpt: Gpt) -> int:
    with FlopCounterMode(display=False) as counter:
        gpt(torch.randint(64, (2, 16))).sum().backward()
    return int(counter.get_total_flops())


def test_torch_counts_the_matrix_products_that_a_gpt_counts() -> None:
    """torch counts the matrix products, but no norms and no attention on the CPU."""
    layers, width, window, samples = 3, 32, 16, 2
    gpt = Gpt(vocabulary=64, window=window, layers=layers, heads=2, width=width)
    attention, norms = 4 * layers * width * window, (2 * layers + 1) * width
    uncounted = samples * window * (3 * attention + 6 * norms)
    assert counted_operations(gpt) == samples * gpt.flops_per_sample() - uncounted


@pytest.mark.parametrize(("recompute", "blocks"), [(Recompute.ALL, 5), (2, 2), (3, 1), (7, 0)])
def test_torch_counts_the_share_of_the_checkpointed_blocks_again(recompute: Recompute | int, blocks: int) -> None:
    gpt = Gpt(vocabulary=64, window=16, layers=5, heads=2, width=32)
    counts = counted_operations(gpt)
    assert checkpoint_activations(gpt, recompute) == blocks
    attention, norms = 4 * 32 * 16, 2 * 2 * 32
    of_a_block = gpt.recomputed_flops_per_sample() / 5
    assert counted_operations(gpt) - counts == blocks * 2 * (of_a_block - 16 * (attention + norms))
    config = Config(activation_checkpointing=True, recompute=recompute)
    assert recompute_ratio(gpt, config) == pytest.approx(blocks * of_a_block / gpt.flops_per_sample())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_what_is_cheap_multiplies_nothing_again_but_a_gpus_attention_that_draws(dropout: float) -> None:
    gpt = Gpt(vocabulary=64, window=16, layers=3, heads=2, width=32, dropout=dropout)
    counts = counted_operations(gpt)
    checkpoint_activations(gpt, Recompute.CHEAP)
    # On the CPU attention that draws is made of matrix products, which are kept; on a GPU it is one kernel.
    assert counted_operations(gpt) == counts
    drawn = 2 * 16 * 4 * 3 * 32 * 16 if dropout else 0
    ratio = recompute_ratio(gpt, Config(activation_checkpointing=True, recompute=Recompute.CHEAP))
    norms = 2 * 16 * 2 * 3 * 2 * 32
    assert ratio == pytest.approx((norms + drawn) / 2 / gpt.flops_per_sample())


def test_a_model_that_does_not_say_what_it_computes_again_has_no_ratio() -> None:
    model = nn.Linear(1, 1)
    assert recompute_ratio(model, Config()) is None
    model.flops_per_sample = lambda: 6  # type: ignore[assignment]
    assert recompute_ratio(model, Config()) == 0.0
    assert recompute_ratio(model, Config(activation_checkpointing=True)) is None


def test_a_gpt_of_gpt_2s_size_has_the_weights_of_gpt_2_without_biases() -> None:
    with torch.device("meta"):
        gpt = Gpt(vocabulary=50257, window=1024, layers=12, heads=12, width=768)
    biases = 12 * (2 * 768 + 3 * 768 + 768 + 4 * 768 + 768) + 768
    assert gpt.parameter_count() + biases == 124_439_808


def test_a_gpt_never_looks_ahead() -> None:
    gpt = Gpt(vocabulary=256, window=16, layers=2, heads=2, width=32).eval()
    tokens = torch.arange(16).unsqueeze(0)
    changed = tokens.clone()
    changed[0, 9] = 200
    before, after = gpt(tokens), gpt(changed)
    assert torch.equal(before[0, :9], after[0, :9])
    assert not torch.equal(before[0, 9:], after[0, 9:])
