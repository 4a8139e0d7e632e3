"""Exact evaluation on all ranks: every test sample once, none twice to fill up a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ddp_trainer.train.batches import reader, to_device
from ddp_trainer.train.errors import BadTask, WrongSamples
from ddp_trainer.train.group import Group
from ddp_trainer.train.keeping import EvaluateOn
from ddp_trainer.train.plan import cut
from ddp_trainer.train.task import Batch, Task

_BATCH = 256


class Evaluation:
    """Means of the task's metrics over the test samples."""

    def __init__(self, task: Task, group: Group, *, on: EvaluateOn = EvaluateOn.ALL) -> None:
        """``on`` rank 0 alone, the others wait for it, and learn the result."""
        samples = task.test_samples()
        self._metrics: Callable[[nn.Module, Batch], Mapping[str, Tensor]] = task.metrics
        self._samples = samples
        self._group = group
        self._shared = on is EvaluateOn.ALL

    def run(self, model: nn.Module) -> dict[str, float]:
        """Mean of each metric; empty where there are no test samples. Every rank must call it.

        Raises:
            WrongSamples: the ranks together counted more or fewer samples than there are.
        """
        if not len(self._samples):
            return {}
        self._group.activity = "in an evaluation"
        training = model.training
        model.eval()
        try:
            with torch.inference_mode():
                sums, count = self._own_sums(model)
        finally:
            model.train(training)
        return self._means(sums, count)

    def _own_sums(self, model: nn.Module) -> tuple[dict[str, Tensor], int]:
        parts = self._group.world_size if self._shared else 1
        own = range(len(self._samples))[
            cut(len(self._samples), parts, self._group.rank) if self._group.rank < parts else slice(0)
        ]
        fetch = reader(self._samples)
        sums: dict[str, Tensor] = {}
        for start in range(own.start, own.stop, _BATCH):
            ids = torch.arange(start, min(start + _BATCH, own.stop))
            batch = to_device(fetch(ids), self._group.device)
            for name, value in self._metrics(model, batch).items():
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value.double().cpu()
        return sums, len(own)

    def _means(self, sums: dict[str, Tensor], count: int) -> dict[str, float]:
        # A rank without test samples does not know the names; rank 0 has a sample if any rank has.
        names = json.loads(self._group.broadcast(json.dumps(sorted(sums)).encode(), source=0))
        if not names:
            raise BadTask("metrics() of the task returned none.", hint="Return at least one sum over the batch.")
        zero = torch.zeros((), dtype=torch.float64)
        vector = torch.stack([sums.get(name, zero) for name in names] + [zero + count]).to(self._group.device)
        *totals, counted = self._group.sum(vector).tolist()
        if int(counted) != len(self._samples):
            raise WrongSamples(
                f"The ranks evaluated {int(counted)} samples of {len(self._samples)}.",
                hint="Check that all ranks see the same test samples.",
            )
        return {name: total / counted for name, total in zip(names, totals, strict=True)}
