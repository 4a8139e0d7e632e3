"""Exact evaluation on all ranks: each test sample counts once, without padding of the last batch.

The entry point is :meth:`Evaluation.run`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from ddp_trainer.train.config.option_values import EvaluateOn
from ddp_trainer.train.data.batch_plan import cut
from ddp_trainer.train.data.batch_reader import is_stream, to_device
from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.data.loaders.base import Request
from ddp_trainer.train.data.loaders.map_reader import SliceReader
from ddp_trainer.train.data.task import Batch, Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadTask, WrongSamples

MOST_SAMPLES: Final = 256
"""Largest number of samples per pass."""

Metrics = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""Returns sums of metrics over a batch, as :meth:`ddp_trainer.train.data.task.Task.metrics`."""


class MetricSums(NamedTuple):
    """Sums over a part of the test samples."""

    metrics: Mapping[str, Tensor]
    samples: int
    skipped: int

    def vector(self, names: Sequence[str]) -> Tensor:
        """Return the metrics in the order of ``names``, then the two counts, as float64 ``(len(names) + 2,)``.

        Args:
            names: Names of the metrics. A metric that these samples do not have counts as 0.
        """
        zero = torch.zeros((), dtype=torch.float64)
        return torch.stack(
            [*(self.metrics.get(name, zero) for name in names), zero + self.samples, zero + self.skipped]
        )


class Evaluation:
    """Computes the mean of each of the task's metrics over the test samples."""

    mode: ClassVar[Callable[[], AbstractContextManager[object]]] = torch.inference_mode
    """Context manager for the model's forward passes."""

    def __init__(
        self,
        task: Task,
        group: Group,
        metrics: Metrics,
        *,
        micro_batch: int | None,
        on: EvaluateOn,
        skipped: Callable[[str], None] | None,
    ) -> None:
        """Prepare the evaluation of a task.

        Args:
            task: Provides test samples.
            group: The ranks.
            metrics: Metrics of the task, computed in the precision and memory layout of training.
            micro_batch: Largest number of samples of a training pass; None if it is not limited.
            on: Ranks that evaluate. If only rank 0 does, the others wait and receive the result.
            skipped: Receives a sentence for each unreadable sample. If it is None, such a sample is an error.

        Raises:
            BadTask: The test samples are a stream, which ranks cannot share.
        """
        samples = task.test_samples()
        if is_stream(samples):
            raise BadTask(
                f"The test samples of the task {task.name!r} are a stream.", hint="Let them have len() and an index."
            )
        self._skipped = skipped
        self._metrics = metrics
        self._pass_samples = min(MOST_SAMPLES, micro_batch or MOST_SAMPLES)
        self._samples = samples
        self._group = group
        self._shared = on is EvaluateOn.ALL

    def run(self, model: nn.Module) -> dict[str, float]:
        """Return the mean of each metric; empty if the task has no test samples. Every rank must call it.

        Raises:
            WrongSamples: The ranks together counted more or fewer samples than there are.
        """
        if not len(self._samples):
            return {}
        self._group.activity = "in an evaluation"
        training = model.training
        model.eval()
        try:
            with type(self).mode():
                parts = [self._sum_metrics(model, part) for part in self._local_ranges()]
        finally:
            model.train(training)
        return self._mean_metrics(parts)

    def _local_ranges(self) -> list[range]:
        """Return the ranges of test samples that this rank evaluates."""
        parts, part = (self._group.data_size, self._group.data_rank) if self._shared else (1, self._group.rank)
        own = cut(len(self._samples), parts, part) if part < parts else slice(0)
        return [range(len(self._samples))[own]]

    def _sum_metrics(self, model: nn.Module, own: range) -> MetricSums:
        random = KeyedRng(0, torch.device("cpu"))
        reader = SliceReader(self._samples, random, skips=self._skipped is not None)
        sums: dict[str, Tensor] = {}
        skipped = 0
        for start in range(own.start, own.stop, self._pass_samples):
            ids = torch.arange(start, min(start + self._pass_samples, own.stop))
            fetched = reader.read(Request(0, 0, 0, ids))
            for sentence in fetched.skipped:
                skipped += 1
                if self._skipped is not None:
                    self._skipped(sentence)
            if fetched.batch is None:
                continue
            batch = to_device(fetched.batch, self._group.device)
            for name, value in self._metrics(model, batch).items():
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value.double().cpu()
        return MetricSums(sums, len(own), skipped)

    def _added_up(self, vectors: Sequence[Tensor], zeros: Tensor) -> Tensor:
        """Return the sum of the vectors over all parts and ranks; ``zeros`` has their shape."""
        return self._group.sum(zeros + sum(vectors) if self._group.counts else zeros)

    def _mean_metrics(self, parts: Sequence[MetricSums]) -> dict[str, float]:
        # A rank without test samples has no metric names.
        known = sorted({name for part in parts for name in part.metrics})
        knowing = self._group.gather(bool(known))
        names = json.loads(self._group.broadcast(json.dumps(known).encode(), source=knowing.index(max(knowing))))
        if not names:
            raise BadTask("metrics() of the task returned none.", hint="Return at least one sum over the batch.")
        vectors = [part.vector(names).to(self._group.device) for part in parts]
        zeros = torch.zeros(len(names) + 2, dtype=torch.float64, device=self._group.device)
        *totals, counted, unread = self._group.read(self._added_up(vectors, zeros))
        if int(counted) != len(self._samples):
            raise WrongSamples(
                f"The ranks evaluated {int(counted)} samples of {len(self._samples)}.",
                hint="Check that all ranks see the same test samples.",
            )
        return {name: total / (counted - unread) for name, total in zip(names, totals, strict=True)}
