"""Evaluation on the test samples: each sample counts once, whatever the number of ranks.

:class:`Evaluation` divides the samples over the ranks. :class:`TreeEvaluation` has the same bits at any number of
ranks, and :class:`EvenEvaluation` makes the same number of passes on every rank, as a sharded model needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor, nn

from ddp_trainer.train.config.option_values import EvaluateOn
from ddp_trainer.train.data.batch_plan import cut, owned
from ddp_trainer.train.data.batch_reader import is_stream, to_device
from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.data.loaders.base import Request
from ddp_trainer.train.data.loaders.map_reader import SliceReader, first_batch
from ddp_trainer.train.data.task import Batch, Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.tree_allreduce import TreeSum
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
        batch_slices: int,
        micro_batch: int | None,
        on: EvaluateOn,
        skipped: Callable[[str], None] | None,
    ) -> None:
        """Prepare the evaluation of a task.

        Args:
            task: Provides test samples.
            group: The ranks.
            metrics: Metrics of the task, computed in the precision and memory layout of training.
            batch_slices: Batch slices of a global batch.
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
        self._batch_slices = batch_slices

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
            for name, value in self._compute_metrics(model, batch).items():
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value.double().cpu()
        return MetricSums(sums, len(own), skipped)

    def _compute_metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        return self._metrics(model, batch)

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


class TreeEvaluation(Evaluation):
    """Evaluates the test samples in as many batch slices as a batch has, and adds up along a fixed tree."""

    def _local_ranges(self) -> list[range]:
        everything = range(len(self._samples))
        if self._shared:
            own = owned(self._batch_slices, self._group.world_size, self._group.rank)
        else:
            own = range(self._batch_slices if self._group.rank == 0 else 0)
        return [everything[cut(len(everything), self._batch_slices, slice_index)] for slice_index in own]

    def _added_up(self, vectors: Sequence[Tensor], zeros: Tensor) -> Tensor:
        if self._shared:
            return self._along_tree(vectors, zeros, self._group)
        # Only rank 0 evaluates; the zeros of the other ranks do not change the sum.
        alone = Group(0, 1, "none", self._group.device)
        return self._group.sum(self._along_tree(vectors, zeros, alone))

    def _along_tree(self, vectors: Sequence[Tensor], zeros: Tensor, group: Group) -> Tensor:
        own = owned(self._batch_slices, group.world_size, group.rank)
        tree = TreeSum(self._batch_slices, group, lambda: [zeros.clone()])
        for slice_index, vector in zip(own, vectors, strict=False):
            tree.put(slice_index, [vector])
        (total,) = tree.total()
        return total


class EvenEvaluation(Evaluation):
    """Evaluation of a sharded model, for tasks whose metrics make one pass through the model per batch."""

    # Weights gathered in inference mode cannot be used in a backward pass.
    mode: ClassVar[Callable[[], AbstractContextManager[object]]] = torch.no_grad
    _batch: Batch | None = None
    _made = 0

    def run(self, model: nn.Module) -> dict[str, float]:
        """Return the mean of each metric, then free all gathered weights; every rank must call it."""
        from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 - a second of imports; only for sharded models

        with self._group.convert_pass_errors():
            metrics = super().run(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return metrics

    def _compute_metrics(self, model: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        self._made += 1
        self._batch = batch
        return self._metrics(model, batch)

    def _sum_metrics(self, model: nn.Module, own: range) -> MetricSums:
        self._made = 0
        sums = super()._sum_metrics(model, own)
        longest = cut(len(self._samples), self._group.data_size, 0)
        for _ in range(-(-(longest.stop - longest.start) // self._pass_samples) - self._made):
            self._metrics(model, self._example() if self._batch is None else self._batch)
        self._batch = None
        return sums

    def _example(self) -> Batch:
        """Return a batch of the first readable test sample; at least one exists."""
        return to_device(first_batch(self._samples), self._group.device)
