"""Tensors of a model become contiguous before they are sent, with the same values."""

from __future__ import annotations

import torch
from torch import nn

from ddp_trainer.train import run
from ddp_trainer.train.loop.run_context import make_contiguous
from tests.support.train_builders import HERE, Lines, lines_config


def tangled() -> nn.Module:
    model = nn.Linear(2, 3, bias=False)
    model.weight = nn.Parameter(torch.arange(6.0).view(2, 3).t())
    model.register_buffer("one_for_all", torch.arange(3.0).expand(4, 3))
    model.register_buffer("every_other", torch.arange(6)[::2])
    model.register_buffer("few", torch.eye(2).to_sparse())
    return model


def test_tensors_are_laid_out_in_place_and_hold_what_they_held() -> None:
    for spreads in (False, True):
        model, wanted = tangled(), tangled()
        weight, buffer = model.weight, model.get_buffer("one_for_all")
        make_contiguous(model, spreads=spreads)
        assert model.weight is weight
        assert model.get_buffer("one_for_all") is buffer
        assert weight.is_contiguous() is spreads
        assert all(each.is_contiguous() for each in model.buffers() if not each.is_sparse)
        for name, tensor in wanted.state_dict().items():
            assert torch.equal(model.state_dict()[name].to_dense(), tensor.to_dense())


def test_a_run_keeps_buffers_of_which_one_row_stands_for_many() -> None:
    class Wide(Lines):
        def model(self) -> nn.Module:
            model = super().model()
            model.register_buffer("row", torch.arange(3.0).expand(4, 3))
            return model

    assert run(lines_config(), Wide(), env=HERE).summary.steps == 3
