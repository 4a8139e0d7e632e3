"""Exact evaluation of a sharded model: each test sample counts once, and every rank makes the same number of passes.

The forward pass gathers weights from all ranks. A rank with fewer samples therefore makes additional passes and drops
their results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.train.config.option_values import EvaluateOn
from ddp_trainer.train.data.batch_plan import cut
from ddp_trainer.train.data.batch_reader import to_device
from ddp_trainer.train.data.loaders.map_reader import first_batch
from ddp_trainer.train.data.task import Batch, Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.evaluation.evaluate import Evaluation, Metrics, MetricSums


class EvenEvaluation(Evaluation):
    """Evaluation of a sharded model, for tasks whose metrics make one pass through the model per batch."""

    # Weights gathered in inference mode cannot be used in a backward pass.
    mode: ClassVar[Callable[[], AbstractContextManager[object]]] = torch.no_grad

    def __init__(
        self,
        task: Task,
        group: Group,
        metrics: Metrics,
        *,
        micro_batch: int | None,
        skipped: Callable[[str], None] | None,
    ) -> None:
        super().__init__(
            task, group, self._compute_metrics, micro_batch=micro_batch, on=EvaluateOn.ALL, skipped=skipped
        )
        self._one_pass = metrics
        self._batch: Batch | None = None
        self._made = 0

    def run(self, model: nn.Module) -> dict[str, float]:
        """Return the mean of each metric, then free all gathered weights; every rank must call it."""
        with self._group.convert_pass_errors():
            metrics = super().run(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return metrics

    def _compute_metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        self._made += 1
        self._batch = batch
        return self._one_pass(model, batch)

    def _sum_metrics(self, model: nn.Module, own: range) -> MetricSums:
        self._made = 0
        sums = super()._sum_metrics(model, own)
        longest = cut(len(self._samples), self._group.data_size, 0)
        for _ in range(-(-(longest.stop - longest.start) // self._pass_samples) - self._made):
            self._one_pass(model, self._example() if self._batch is None else self._batch)
        self._batch = None
        return sums

    def _example(self) -> Batch:
        """Return a batch of the first readable test sample; at least one exists."""
        return to_device(first_batch(self._samples), self._group.device)
