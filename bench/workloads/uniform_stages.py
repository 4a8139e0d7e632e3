"""Task of ``bench bubble``: layers of equal cost, so that stages cost the same, and larger than all other costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from ddp_trainer.train.data.task import rowwise


class RandomRows:
    """Rows of numbers; each is drawn from its own index."""

    def __init__(self, count: int, width: int) -> None:
        self._count, self._width = count, width

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    @rowwise
    def batch(self, ids: Tensor) -> Tensor:
        """Float32 ``(n, width)``."""
        return torch.sin(ids[:, None] + torch.arange(self._width) / self._width)


class LayerStack(nn.Module):
    """Some layers of a model, by their names in it."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)

    def forward(self, rows: Tensor) -> Tensor:
        """One behind the other."""
        for layer in self.layers.values():
            rows = torch.tanh(layer(rows))
        return rows


class Even:
    """Task whose model learns to output zeros."""

    name = "even"
    width: ClassVar = 512
    layers: ClassVar = 16
    """Number of layers. The layer whose input needs no gradient then makes its stage only slightly cheaper."""

    def model(self) -> nn.Module:
        """Return the model of all layers."""
        return LayerStack({str(number): nn.Linear(self.width, self.width) for number in range(self.layers)})

    def pipeline_stage(self, model: nn.Module, index: int, count: int) -> nn.Module:
        """Return a stage with as many layers as any other."""
        size = self.layers // count
        layers = cast("LayerStack", model).layers
        return LayerStack({str(number): layers[str(number)] for number in range(index * size, (index + 1) * size)})

    def train_samples(self) -> RandomRows:
        """Return enough samples for every step."""
        return RandomRows(1 << 20, self.width)

    def test_samples(self) -> RandomRows:
        """Return no samples."""
        return RandomRows(0, self.width)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean square of each row."""
        return cast("Tensor", model(batch)).square().mean(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """The loss."""
        return {"loss": self.losses(model, batch).sum()}
