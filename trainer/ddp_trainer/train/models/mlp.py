"""Multilayer perceptron, as in a first tutorial."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp_trainer.train.models.registry import at_least, share


class Mlp(nn.Sequential):
    """Hidden layers of one width, each with ReLU and dropout.

    The input is images ``(n, …)``, the output logits ``(n, classes)``.
    """

    def __init__(
        self, *, channels: int, side: int, classes: int, hidden: int = 128, layers: int = 2, dropout: float = 0.2
    ) -> None:
        at_least(1, hidden=hidden, layers=layers)
        share(dropout=dropout)
        width = channels * side * side
        parts: list[nn.Module] = []
        for _ in range(layers):
            parts += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout)]
            width = hidden
        super().__init__(*parts, nn.Linear(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``(n, classes)``. Images of any shape are flattened.

        Args:
            images: Float images, ``(n, …)``.
        """
        return super().forward(torch.flatten(images, 1))  # type: ignore[no-any-return, no-untyped-call] # torch's
