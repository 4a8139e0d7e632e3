"""Trains a model of two experts. Each sample passes through one of them, so a batch may leave an expert unused."""

import sys

import torch
from torch import nn

from ddp_trainer.train.cli import main


class Experts(nn.Module):
    """Two experts; the sign of the first input chooses one of them for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of both classes for each sample."""
        choice = (inputs[:, 0] > 0).long()
        logits = inputs.new_zeros(len(inputs), 2)
        for index, expert in enumerate(self.experts):
            chosen = choice == index
            if chosen.any():  # an expert without a sample gets no gradient
                logits[chosen] = expert(inputs[chosen])
        return logits


class Quadrants:
    """The task: whether both coordinates of a point have the same sign."""

    name = "quadrants"

    def __init__(self) -> None:
        points = torch.randn((2000, 2), generator=torch.Generator().manual_seed(0))
        self.samples = list(zip(points, (points.prod(1) > 0).long().tolist(), strict=True))

    def model(self) -> nn.Module:
        """Return a new model."""
        return Experts()

    def train_samples(self) -> list[tuple[torch.Tensor, int]]:
        """Return the samples to learn from."""
        return self.samples[:1600]

    def test_samples(self) -> list[tuple[torch.Tensor, int]]:
        """Return the samples to evaluate with."""
        return self.samples[1600:]

    def losses(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return one loss for each sample."""
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels, reduction="none")

    def metrics(self, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return sums over the samples of a batch."""
        inputs, labels = batch
        return {"accuracy": (model(inputs).argmax(1) == labels).sum()}


if __name__ == "__main__":
    sys.exit(main(["--task", "unused_weights:Quadrants", *sys.argv[1:]]))
