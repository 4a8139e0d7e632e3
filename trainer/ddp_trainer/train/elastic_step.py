"""One global step of a user-written loop.

:class:`Step` yields this rank's batches and takes their losses. :class:`~ddp_trainer.train.elastic_loop.ElasticLoop`
creates and commits it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.train.data.batch_plan import digest
from ddp_trainer.train.data.keyed_rng import Stream
from ddp_trainer.train.data.loaders.step_batches import StepPlan
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.loop.batch_slices import StepResult, fetch_slice
from ddp_trainer.train.loop.group_components import GroupComponents
from ddp_trainer.train.loop.train_state import TrainState
from ddp_trainer.train.utils.errors import BadTask


class Step:
    """This rank's part of a global step: iterate over its batches, and pass the loss of each to :meth:`backward`.

    There is one batch for each batch slice that this rank owns. A rank may therefore have several batches, or none in
    the last step of an epoch.
    """

    def __init__(self, samples_of_all: StepPlan, state: TrainState, parts: GroupComponents) -> None:
        self.number = samples_of_all.step
        """Number of the global step, counted from 0."""
        self.epoch = state.plan.epoch_of(self.number)
        """Number of the epoch, counted from 0."""
        self.batch_ids = samples_of_all.ids
        """Ids of the samples of the whole global step."""
        self.own_ids: list[Tensor] = []
        """Ids of the samples whose loss was passed to :meth:`backward`, one tensor per batch."""
        self.samples_of_all = samples_of_all
        self.result = StepResult(loss=parts.no_loss.clone())
        """Samples and losses that were passed to :meth:`backward`."""
        self._optimizer, self._parts = state.optimizer, parts
        self._waiting: Tensor | None = None

    def __iter__(self) -> Iterator[Batch]:
        parts = self._parts
        for request in self.samples_of_all.own:
            batch, _ = fetch_slice(parts, request, self.result)
            parts.random.enter(Stream.MODEL, self.number, request.slice_index)
            self._waiting = request.ids
            yield batch
            if self._waiting is not None:
                raise BadTask(
                    f"A batch of step {self.number} was not given to step.backward.",
                    hint="Call step.backward(loss) once for each batch.",
                )
            if parts.buffers is not None:
                parts.buffers.slice_done()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the last batch.

        The loss is weighted so that the sum over all batches is the mean over the whole global step. The result does
        not depend on the number of ranks.

        Args:
            loss: Mean loss of the batch, a scalar.

        Raises:
            BadTask: No batch is pending, or its loss was passed already.
        """
        if self._waiting is None:
            raise BadTask(
                f"step.backward was called without a batch of step {self.number}.",
                hint="Call it once for each batch, inside the loop over the step.",
            )
        ids, self._waiting = self._waiting, None
        self._parts.timer.end_phase(Phase.FORWARD)
        torch.autograd.backward(self._optimizer.scaled(loss) * (len(ids) / len(self.batch_ids)))
        self._parts.timer.end_phase(Phase.BACKWARD)
        self.own_ids.append(ids)
        result = self.result
        result.samples += len(ids)
        result.digest += digest(ids)
        result.loss = self.loss + loss.detach().double() * len(ids)

    @property
    def loss(self) -> Tensor:
        """Sum of the losses of those samples, a float64 scalar on the device."""
        assert self.result.loss is not None  # noqa: S101 - set at construction
        return self.result.loss
