"""What a state is about to give gets memory and no numbers; what none gives, the numbers that it was drawn with."""

from __future__ import annotations

import torch
from torch import nn

from ddp_trainer.train.deferred_init.materialize import empty_out, fill_here
from ddp_trainer.train.loop.run_context import Drawn, draw_model
from tests.support.train_builders import Lines

SIDE = 40
LOADED = frozenset({"0.weight", "1.weight", "1.bias"})


class Wide(Lines):
    """With weights of more than four kilobytes, and biases of less."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE), nn.Linear(SIDE, SIDE))


def drawn() -> tuple[nn.Module, Drawn]:
    """The model as one process has it, and without memory."""
    return draw_model(Wide(), 5).model, draw_model(Wide(), 5, spreads=True)


def test_weights_that_a_rank_has_whole_are_not_a_number_until_they_are_loaded() -> None:
    wanted, (model, recipes, _) = drawn()
    fill_here(model, recipes, torch.device("cpu"), LOADED)
    for name, weight in model.named_parameters():
        if name in LOADED and name.endswith("weight"):
            assert weight.isnan().all()
        else:
            assert torch.equal(weight, wanted.get_parameter(name))
    model.load_state_dict(wanted.state_dict())
    assert all(torch.equal(weight, wanted.get_parameter(name)) for name, weight in model.named_parameters())


def test_nothing_is_kept_to_fill_pieces_with_that_are_loaded() -> None:
    wanted, (model, recipes, _) = drawn()
    numbers = empty_out(model, recipes, LOADED)
    assert all(weight.is_meta for weight in model.parameters())
    assert numbers.keys() == dict(model.named_parameters()).keys()
    assert {name for name, found in numbers.items() if found is None} == LOADED
    bias = numbers["0.bias"]
    assert isinstance(bias, torch.Tensor)
    assert torch.equal(bias, wanted.get_parameter("0.bias"))
