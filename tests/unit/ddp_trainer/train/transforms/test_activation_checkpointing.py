"""Activations that are computed again in the backward pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations


def test_activations_are_computed_again_and_gradients_stay_the_same() -> None:
    class Counted(nn.Linear):
        calls = 0

        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
            Counted.calls += 1
            return super().forward(input)

    torch.manual_seed(0)
    model = nn.Sequential(Counted(3, 3), nn.Dropout(0.5), nn.ReLU(), Counted(3, 1))
    gradients = []
    for again in (False, True):
        if again:
            assert checkpoint_activations(model) == 2
        Counted.calls = 0
        model.zero_grad()
        torch.manual_seed(1)
        torch.autograd.backward(model(torch.ones(2, 3)).sum())
        assert Counted.calls == (4 if again else 2)
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "3.weight", "3.bias"]
