"""Task whose state and data set have the sizes that the environment gives, and whose steps cost little.

Most of the state is weights that are not trained: a step neither computes nor exchanges gradients for them, but saves,
transfers and loads carry them. :func:`add_frozen_weights` gives them to any model. The samples cost nothing to read.
"""

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

STATE_MEGABYTES = "BENCH_STATE_MB"
"""Variable with the size of the weights that are not trained."""
SAMPLES = "BENCH_SAMPLES"
"""Variable with the number of samples (default: 100,000)."""
TENSOR_BYTES = 4_000_000


def add_frozen_weights(model: nn.Module) -> nn.Module:
    """Add as many untrained weights as the environment gives (default: none), drawn as a layer draws its own."""
    size_bytes = int(os.environ.get(STATE_MEGABYTES, "0")) * 1_000_000
    for number in range(size_bytes // TENSOR_BYTES):
        weight = nn.Parameter(torch.empty(TENSOR_BYTES // 4), requires_grad=False)
        model.register_parameter(f"ballast_{number}", nn.init.normal_(weight))
    return model


class SyntheticSamples:
    """Samples that cost nothing to read, of any number."""

    rowwise = True

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    def batch(self, ids: Tensor) -> Tensor:
        """Return the samples of these ids."""
        return (ids % 7).float().unsqueeze(1)


class Growing:
    """Task with a small network, and untrained weights beside it."""

    name = "growing"

    def __init__(self, count: int | None = None) -> None:
        self._count = count or int(os.environ.get(SAMPLES, "100000"))

    def model(self) -> nn.Module:
        """Return the network."""
        return add_frozen_weights(
            nn.Sequential(nn.Linear(1, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
        )

    def train_samples(self) -> SyntheticSamples:
        """Return the samples."""
        return SyntheticSamples(self._count)

    def test_samples(self) -> tuple[()]:
        """Return none."""
        return ()

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Return the losses."""
        losses: Tensor = (model(batch) - batch).square().squeeze(1)
        return losses

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """Return the sum of the losses."""
        return {"loss": self.losses(model, batch).sum()}
