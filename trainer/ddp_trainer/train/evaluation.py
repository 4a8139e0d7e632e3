"""Exact evaluation on all ranks: every test sample once, none twice to fill up a batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from ddp_trainer.train.batches import is_stream, to_device
from ddp_trainer.train.errors import BadTask, WrongSamples
from ddp_trainer.train.feeds import Request
from ddp_trainer.train.feeds.shard_reader import ShardReader
from ddp_trainer.train.group import Group
from ddp_trainer.train.keeping import EvaluateOn
from ddp_trainer.train.plan import cut
from ddp_trainer.train.randomness import KeyedRandom
from ddp_trainer.train.task import Batch, Task

_BATCH = 256


class Evaluation:
    """Means of the task's metrics over the test samples."""

    def __init__(
        self,
        task: Task,
        group: Group,
        *,
        on: EvaluateOn = EvaluateOn.ALL,
        skipped: Callable[[str], None] | None = None,
    ) -> None:
        """``on`` rank 0 alone, the others wait for it, and learn the result.

        Args:
            task: whose test samples and metrics.
            group: the ranks.
            on: who evaluates.
            skipped: gets the sentence of each sample that cannot be read; without it, such a sample is an error.

        Raises:
            BadTask: the test samples can only be read in order, and so not be shared.
        """
        samples = task.test_samples()
        if is_stream(samples):
            raise BadTask(
                f"The test samples of the task {task.name!r} are a stream.", hint="Let them have len() and an index."
            )
        self._skipped = skipped
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
                sums, count, skipped = self._own_sums(model)
        finally:
            model.train(training)
        return self._means(sums, count, skipped)

    def _own_sums(self, model: nn.Module) -> tuple[dict[str, Tensor], int, int]:
        parts = self._group.world_size if self._shared else 1
        own = range(len(self._samples))[
            cut(len(self._samples), parts, self._group.rank) if self._group.rank < parts else slice(0)
        ]
        random = KeyedRandom(0, torch.device("cpu"))
        read = ShardReader(self._samples, random, skips=self._skipped is not None)
        sums: dict[str, Tensor] = {}
        skipped = 0
        for start in range(own.start, own.stop, _BATCH):
            ids = torch.arange(start, min(start + _BATCH, own.stop))
            fetched = read(Request(0, 0, 0, ids))
            for sentence in fetched.skipped:
                skipped += 1
                if self._skipped is not None:
                    self._skipped(sentence)
            if fetched.batch is None:
                continue
            batch = to_device(fetched.batch, self._group.device)
            for name, value in self._metrics(model, batch).items():
                sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + value.double().cpu()
        return sums, len(own), skipped

    def _means(self, sums: dict[str, Tensor], count: int, skipped: int) -> dict[str, float]:
        # A rank without test samples does not know the names.
        knowing = self._group.gather(bool(sums))
        names = json.loads(self._group.broadcast(json.dumps(sorted(sums)).encode(), source=knowing.index(max(knowing))))
        if not names:
            raise BadTask("metrics() of the task returned none.", hint="Return at least one sum over the batch.")
        zero = torch.zeros((), dtype=torch.float64)
        vector = torch.stack([sums.get(name, zero) for name in names] + [zero + count, zero + skipped])
        *totals, counted, unread = self._group.sum(vector.to(self._group.device)).tolist()
        if int(counted) != len(self._samples):
            raise WrongSamples(
                f"The ranks evaluated {int(counted)} samples of {len(self._samples)}.",
                hint="Check that all ranks see the same test samples.",
            )
        return {name: total / (counted - unread) for name, total in zip(names, totals, strict=True)}
