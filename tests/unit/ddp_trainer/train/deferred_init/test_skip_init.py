"""A model that is built without its weights is the same in all else, or says that it is not."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ddp_trainer.train.deferred_init.skip_init import SkipInit


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


class RandomBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("features", torch.randn(4), persistent=False)


class DistanceFromStart(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.start = self.weight.detach().clone()


class Scaled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("scale", self.weight.data.abs().max(), persistent=False)


class Copied(nn.Sequential):
    def __init__(self) -> None:
        layer = nn.Linear(4, 4)
        super().__init__(layer, copy.deepcopy(layer))


class Truncated(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight)


class HiddenTeacher(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.teacher = [nn.Linear(4, 4)]


class KeptView(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.alias = self.weight.data


class SharedBuffer(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("same", self.weight.detach(), persistent=False)


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


class DrawnElsewhere(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))


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


@pytest.mark.parametrize(
    "model",
    [
        *(RandomBuffer, DistanceFromStart, Scaled, Copied, Truncated, DrawnElsewhere),
        *(HiddenTeacher, KeptView, SharedBuffer, OwnGenerator, ForkedGenerator),
    ],
)
def test_a_model_that_depends_on_its_first_weights_is_not_exact(model: Callable[[], nn.Module]) -> None:
    with SkipInit() as skips:
        built = model()
    assert not skips.is_exact(built)
