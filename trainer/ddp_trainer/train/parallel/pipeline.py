"""Strategy of ``--parallel pp=N``: pipeline parallelism with the schedules of :mod:`torch.distributed.pipelining`.

Each rank holds some layers, and micro-batches pass through the ranks in sequence. A step is one run of the schedule
over all samples of this data rank, in micro-batches of ``--micro-batch`` samples. The last micro-batch is padded with
copies, whose losses do not count. Losses are summed and divided once, by the number of samples of the whole global
step. With ``replicate``, gradients are added up over replicas after the schedule.

Stages may be tensor-parallel (``tp``): each rank then sends the slice that it holds. Stages may also be sharded
(``shard``): their weights are gathered once per step, see :mod:`ddp_trainer.train.parallel.pp.pp_zero`.

Source: Y. Huang et al., "GPipe", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.common.trainer_options import micro_batch_size
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan, shares
from ddp_trainer.train.data.batch_reader import micro_batches
from ddp_trainer.train.data.loaders.base import BatchSlice
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.mesh.sharded_state import local_shard
from ddp_trainer.train.optim.optimizer import LossScale
from ddp_trainer.train.parallel.pp.pipeline_split import Stages, check_micro_batches, make_schedule
from ddp_trainer.train.parallel.pp.stage_transfer import BetweenStreams, StageComputation, time_transfers
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments
from ddp_trainer.train.parallel.tensor_parallel import add_up_along, full_losses, in_slices, redistribute_gradient
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadTask, TrainError


class Pipeline(Strategy):
    """Strategy for a model that :func:`ddp_trainer.train.parallel.pp.pipeline_split.split_stages` has cut."""

    computes_together = True
    merges_slices: ClassVar[bool] = True
    schedules_passes: ClassVar[bool] = True

    def __init__(self, arguments: StrategyArguments, stages: Stages) -> None:
        super().__init__(arguments)
        config, plan, group = arguments.config, arguments.plan, arguments.group
        self._stages = stages
        self._waits = arguments.waits
        self._layout = stages.mesh.layout
        self._weights = self._here()
        """Weights that the optimizer steps: with ``shard``, this rank's shards."""
        self._shared = [name for name, holders in stages.weights.items() if len(holders) > 1]
        ranks, pp = group.data_size, self._layout.pp
        of_all = [_micro_batches(plan, config, rank, ranks, pp) for rank in range(ranks)]
        for _, count in of_all:
            # The counts of all ranks, so that all ranks raise the same error.
            check_micro_batches(config.pipeline_schedule, count, pp)
        self._size, self._count = of_all[group.data_rank]
        own = {number: stages.modules[number] for number in stages.local_stages}
        self._computation = StageComputation(own, config.precision, config.seed, group.device)
        self._schedule: Any = None
        self._loss: Callable[[Tensor, int], Tensor] | None = None

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Gather the sharded weights; ranks without samples in the step take part."""
        if self._stages.pieces is not None:
            self._stages.pieces.gather(self._waits)

    def run_schedule(self, batch_slice: BatchSlice, scale: LossScale | None) -> Tensor:
        """Run the schedule once and return the sum of the losses, 0 on ranks without the last stage.

        All of the schedule counts as backward time. Stages do not record changes of buffers.
        """
        here = batch_slice.samples
        pieces = micro_batches(batch_slice.batch, here, self._size)
        sizes = [len(range(here)[start : start + self._size]) for start in range(0, here, self._size)]
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        self._computation.begin()
        inputs = torch.cat([self._inputs(piece) for piece in pieces])
        answer = self._stages.streams(inputs[:1].expand(self._size, *inputs.shape[1:]))[-1]

        def loss(output: Tensor, number: int) -> Tensor:
            if number >= len(pieces):
                return output.sum() * 0.0
            losses = full_losses(
                self._losses(_FixedOutputModel(answer.from_local(output)[: sizes[number]]), pieces[number])
            )
            total.add_(losses.detach().sum(dtype=torch.float64))
            return (losses if scale is None else scale.up(losses)).sum() / batch_slice.total_samples

        filled = inputs[:1].expand(self._size * self._count - here, *inputs.shape[1:])
        self._run(torch.cat([inputs, filled]), loss)
        return total

    def _run(self, inputs: Tensor, loss: Callable[[Tensor, int], Tensor]) -> None:
        own, last = self._stages.local_stages, len(self._stages.modules) - 1
        with self._group.convert_pass_errors(), _as_it_was(), self._pass_context(), time_transfers(self._waits):
            if self._schedule is None:
                self._schedule = self._make(inputs[: self._size])
            self._loss = loss
            numbers = {"target": torch.arange(self._count)} if last in own else {}
            self._schedule.step(*((inputs,) if 0 in own else ()), **numbers, return_outputs=False)
            self._loss = None

    def _make(self, example: Tensor) -> Any:
        """Build the schedule for micro-batches of this shape and dtype."""
        streams = self._stages.streams(example)
        count = len(self._stages.modules)
        with self._group.convert_errors():
            made = [
                PipelineStage(
                    BetweenStreams(self._stages.modules[number], streams[number], streams[number + 1]),
                    number,
                    count,
                    self._group.device,
                    input_args=_as_passed(streams[number].here),
                    output_args=_as_passed(streams[number + 1].here),
                    group=self._stages.process_group,
                )
                for number in self._stages.local_stages
            ]
            return make_schedule(self._stages.kind, made, self._count, self._loss_of)

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None  # noqa: S101 - the schedule runs inside of a step
        return self._loss(output, int(number))

    def _inputs(self, batch: Batch) -> Tensor:
        """Return the tensor with which the task's ``losses()`` calls the model.

        Raises:
            BadTask: It does not call the model with one tensor.
        """
        question = _ProbeModel()
        try:
            self._losses(question, batch)
        except _InputCaptured:
            if len(question.inputs) == 1 and isinstance(question.inputs[0], Tensor):
                return question.inputs[0]
        raise BadTask(
            "--parallel has pp, and losses() of the task does not call its model with one tensor.",
            hint="Let losses() begin with model(inputs), where inputs is a tensor of a row for each sample.",
        )

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - the losses were divided by it
        """Add up gradients over the stages that share a weight, over ``shard``, and over replicas."""
        with self._group.convert_errors():
            for weight in self._here():
                redistribute_gradient(weight)
            for name in self._shared:
                with self._waits.during(Wait.STAGE):  # the others may not be through with the schedule
                    self._add_up_over_stages(self.model.get_parameter(name))
            if self._stages.pieces is not None:
                self._stages.pieces.reduce_scatter_grads(self._waits)
            if self._layout.replicate > 1:
                add_up_along(self._weights, self._stages.mesh, "replicate", self._allreduce_timer)

    def _here(self) -> list[nn.Parameter]:
        """Return the trainable weights of this rank's stages; during a step these are whole weights."""
        return [weight for weight in self.model.parameters() if weight.requires_grad and not weight.is_meta]

    def _add_up_over_stages(self, weight: nn.Parameter) -> None:
        if weight.grad is None:  # the weight is in other stages; the collective needs all ranks
            own = local_shard(weight)
            gradient = torch.zeros(own.shape, dtype=own.dtype, device=self._group.device)
        else:
            gradient = local_shard(weight.grad)
        dist.all_reduce(gradient, group=self._stages.process_group)

    def _allreduce_timer(self) -> AbstractContextManager[None]:
        """Return the timer around the all-reduce over replicas, which is measured only if stages are sharded."""
        return nullcontext() if self._stages.pieces is None else self._waits.during(Wait.REDUCE_SCATTER)

    def _pass_context(self) -> AbstractContextManager[None]:
        return in_slices() if self._layout.tp > 1 else uncompiled()

    def reported_loss(self, own: Tensor) -> Tensor:
        """Return the loss of the last stage, on all ranks of the pipeline."""
        loss = own.clone()
        with self._group.convert_errors(), self._waits.during(Wait.STAGE):
            dist.all_reduce(loss, group=self._stages.process_group)
        return loss


def _micro_batches(plan: BatchPlan, config: Config, rank: int, ranks: int, pp: int) -> tuple[int, int]:
    """Return the size of a micro-batch in samples, and the number of micro-batches of a data rank."""
    most = shares(min(plan.global_batch, plan.samples), plan.batch_slices, ranks)[rank]
    size = micro_batch_size(most, config.micro_batch, pp)
    return size, -(-most // size)


class _InputCaptured(Exception):
    """Raised when the model is called, to end the task's ``losses()``."""


class _ProbeModel(nn.Module):
    """Stand-in for the model that records the inputs of its call."""

    inputs: tuple[Any, ...] = ()

    def forward(self, *inputs: Any) -> Tensor:
        """Record the inputs and end the caller by raising."""
        self.inputs = inputs
        raise _InputCaptured


class _FixedOutputModel(nn.Module):
    """Stand-in for the model that returns an output that is computed already."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self._answer = answer

    def forward(self, *_: Any) -> Tensor:
        """Return the output, whatever the inputs."""
        return self._answer


def _as_passed(shape: Tensor) -> Tensor:
    """Return a detached copy that requires gradients if its dtype is floating point."""
    return shape.detach().requires_grad_(shape.is_floating_point())


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Re-raise the error of a stage itself: torch wraps it in a RuntimeError with a message of many lines."""
    try:
        yield
    except RuntimeError as err:
        if isinstance(err.__cause__, TrainError | RuntimeError):
            raise err.__cause__ from None
        raise
