"""Model and data of the loops of ``bench overhead``, and the clock that times them from inside the model.

All loops train the same network on the same samples from the same seed, with the same batch and the same optimizer. The
model itself keeps the time: the forward pass that ends the warm-up starts the clock, and the one after the last timed
step stops it, so that no loop is charged for its start or its end.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from ddp_trainer.train.data.task import rowwise
from ddp_workloads.gpt import Gpt

SEED: Final = 5
RATE: Final = 1e-3
_CLASSES: Final = 10
_BLOCK: Final = 100
"""Steps whose processor time is taken together: an epoch of the small workload. Of fewer steps, all of them are."""

Pair = tuple[Tensor, Tensor]
"""Inputs and labels of some samples."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A network, and samples for it."""

    batch: int
    """Samples of a step, over all ranks together."""
    count: int
    """Samples of an epoch; a multiple of the batch."""
    network: Callable[[], nn.Module]
    samples: Callable[[int], Pair]


def world_size() -> int:
    """Number of ranks of this loop, from torchrun's variable, which a loop of one process must not see."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _points(count: int) -> Pair:
    inputs = torch.randn(count, 64, generator=torch.Generator().manual_seed(SEED))
    return inputs, inputs[:, :_CLASSES].argmax(1)


def _tokens(count: int) -> Pair:
    text = torch.randint(256, (count, 129), generator=torch.Generator().manual_seed(SEED))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def _build_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, _CLASSES))


WORKLOADS: Final[Mapping[str, Workload]] = {
    "tiny": Workload(64, 64 * 100, _build_mlp, _points),
    # 9.5 million weights.
    "gpt": Workload(4, 4 * 50, lambda: Gpt(vocabulary=256, window=128, layers=12, heads=8, width=256), _tokens),
}


class Clock:
    """Counts forward passes, of which a step has one, and times those after the warm-up."""

    def __init__(self, warmup: int, steps: int) -> None:
        self._first, self._last = warmup, warmup + steps
        self._block = min(_BLOCK, steps)
        self._ticks: list[float] = []
        self._processor: list[float] = []

    @property
    def steps(self) -> int:
        """Return the number of steps that a loop must take."""
        return self._last + 1

    def tick(self) -> None:
        """A forward pass begins."""
        timed = len(self._ticks) - self._first
        if timed >= 0 and timed % self._block == 0:
            self._processor.append(time.process_time())
        self._ticks.append(time.perf_counter())

    def result(self) -> dict[str, float]:
        """Seconds of a step: the mean and the median by the clock on the wall, and the processor's.

        The processor's are the median over blocks of steps: a block holds all that a loop does once per epoch, and one
        that was disturbed by other load on the machine does not count for more than another.

        Raises:
            RuntimeError: the loop took a wrong number of steps.
        """
        if len(self._ticks) != self.steps:
            raise RuntimeError(f"The loop ran {len(self._ticks)} forward passes where {self.steps} were wanted.")
        steps = [after - before for before, after in itertools.pairwise(self._ticks[self._first :])]
        blocks = [after - before for before, after in itertools.pairwise(self._processor)]
        return {
            "mean": statistics.fmean(steps),
            "median": statistics.median(steps),
            "processor": statistics.median(blocks) / self._block if blocks else math.nan,
        }


class Timed(nn.Module):
    """A network that keeps the time."""

    def __init__(self, work: Workload, clock: Clock) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.network = work.network()
        self._clock = clock

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, ``(predictions, classes)``."""
        self._clock.tick()
        logits: Tensor = self.network(inputs)
        return logits.flatten(0, -2)


def mean_loss(model: nn.Module, pair: Pair) -> Tensor:
    """Mean cross entropy."""
    inputs, labels = pair
    return nn.functional.cross_entropy(model(inputs), labels.flatten())


def optimizer_of(model: nn.Module) -> Optimizer:
    """The same for all loops: AdamW as torch makes it when asked for no kernel."""
    return AdamW(model.parameters(), lr=RATE)


class Rows:
    """A map-style dataset that slices batches out of two tensors, which is the fastest way."""

    def __init__(self, pair: Pair) -> None:
        self._inputs, self._labels = pair

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Pair:
        return self._inputs[index], self._labels[index]

    def __getitems__(self, indices: list[int]) -> Pair:
        """Return a collated batch; torch's DataLoader calls this method if it exists."""
        return self.batch(torch.tensor(indices))

    @rowwise
    def batch(self, ids: Tensor) -> Pair:
        """Return a batch; our trainer calls this method if it exists."""
        return self._inputs[ids], self._labels[ids]
