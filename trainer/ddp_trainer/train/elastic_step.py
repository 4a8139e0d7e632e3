"""One global step of a user-written loop.

:class:`Step` yields this rank's batches and takes their losses. :class:`~ddp_trainer.train.elastic_loop.ElasticLoop`
creates and commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.common.constants import Phase
from ddp_trainer.train.data.batch_plan import BatchPlan, cut
from ddp_trainer.train.data.batch_reader import to_device
from ddp_trainer.train.data.keyed_rng import KeyedRandom, Stream
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.exact.buffer_sync import SharedBuffers
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.utils.errors import BadTask


@dataclass(frozen=True, slots=True)
class StepParts:
    """Components that a step uses."""

    plan: BatchPlan
    shards: Sequence[int]
    """Numbers of the logical shards that this rank owns."""
    fetch: Callable[[Tensor], Batch]
    random: KeyedRandom
    buffers: SharedBuffers
    phases: StepTimer
    device: torch.device


class Step:
    """This rank's part of a global step: iterate over its batches, and pass the loss of each to :meth:`backward`.

    There is one batch for each logical shard that this rank owns. A rank may therefore have several batches, or none in
    the last step of an epoch.
    """

    def __init__(self, number: int, parts: StepParts) -> None:
        self.number = number
        """Number of the global step, counted from 0."""
        self.epoch = parts.plan.epoch_of(number)
        """Number of the epoch, counted from 0."""
        self.batch_ids = parts.plan.batch(number)
        """Ids of the samples of the whole global step."""
        self.own_ids: list[Tensor] = []
        """Ids of the samples whose loss was passed to :meth:`backward`, one tensor per batch."""
        self.loss = torch.zeros((), dtype=torch.float64, device=parts.device)
        """Sum of the losses of those samples, a float64 scalar on the device."""
        self._parts = parts
        self._waiting: Tensor | None = None

    def __iter__(self) -> Iterator[Batch]:
        parts = self._parts
        for shard in parts.shards:
            ids = self.batch_ids[cut(len(self.batch_ids), parts.plan.shards, shard)]
            if not len(ids):
                continue
            parts.random.enter(Stream.FETCH, self.number, shard)
            samples = parts.fetch(ids)
            parts.phases.lap(Phase.DATA_WAIT)
            samples = to_device(samples, parts.device)
            parts.phases.lap(Phase.HOST_TO_DEVICE)
            parts.random.enter(Stream.MODEL, self.number, shard)
            self._waiting = ids
            yield samples
            if self._waiting is not None:
                raise BadTask(
                    f"A batch of step {self.number} was not given to step.backward.",
                    hint="Call step.backward(loss) once for each batch.",
                )
            parts.buffers.shard_done()

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
        self._parts.phases.lap(Phase.FORWARD)
        torch.autograd.backward(loss * (len(ids) / len(self.batch_ids)))
        self._parts.phases.lap(Phase.BACKWARD)
        self.loss += loss.detach().double() * len(ids)
        self.own_ids.append(ids)
