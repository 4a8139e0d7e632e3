"""Evaluation with bitwise equal metrics at any number of ranks.

Early stopping and the choice of the best checkpoint depend on these metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ddp_trainer.train.config.option_values import EvaluateOn
from ddp_trainer.train.data.batch_plan import cut, owned
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.evaluation.evaluate import Evaluation, Metrics
from ddp_trainer.train.exact.tree_allreduce import TreeSum


class TreeEvaluation(Evaluation):
    """Evaluates the test samples in as many batch slices as a batch has, and adds up along a fixed tree."""

    def __init__(
        self,
        task: Task,
        group: Group,
        metrics: Metrics,
        batch_slices: int,
        *,
        micro_batch: int | None,
        on: EvaluateOn,
        skipped: Callable[[str], None] | None,
    ) -> None:
        super().__init__(task, group, metrics, micro_batch=micro_batch, on=on, skipped=skipped)
        self._batch_slices = batch_slices

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
