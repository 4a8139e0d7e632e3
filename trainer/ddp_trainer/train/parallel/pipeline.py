"""``--parallel pp=N``: ranks have some layers each, and micro-batches pass through them one behind the other.

Y. Huang et al., "GPipe", 2019, with the schedules of :mod:`torch.distributed.pipelining`. A step is one run of the
schedule over all samples of this part of the batch, in micro-batches of ``--micro-batch`` samples; what is missing to
the last one is filled up with copies whose losses do not count. Losses are added up and divided once, by the samples of
the whole global step. With ``replicate``, gradients are added up over replicas when the schedule is through.

Stages may be in slices (``tp``), whose ranks pass on the slices that they have, and in pieces (``shard``), which are
gathered once in a step: see :mod:`ddp_trainer.train.parallel.pp.pp_zero`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ddp_trainer.common.constants import Wait
from ddp_trainer.common.model_constraints import micro_batch_size
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan, cut, owned
from ddp_trainer.train.data.micro_batches import micro_batches
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.mesh.sharded_state import piece
from ddp_trainer.train.parallel.pipeline_schedule import demand_fit, make_schedule
from ddp_trainer.train.parallel.pp.pipeline_split import Stages
from ddp_trainer.train.parallel.pp.pp_comm import timed_transfers
from ddp_trainer.train.parallel.pp.pp_module import StageComputation
from ddp_trainer.train.parallel.pp.pp_tensor_spec import BetweenStreams
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from ddp_trainer.train.parallel.tensor_parallel import add_up_along, in_slices, settle, whole_losses
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadTask, TrainError


class Pipeline(Strategy):
    """Of a model that :func:`ddp_trainer.train.parallel.pp.pipeline_split.split_stages` has cut."""

    computes_together: ClassVar[bool] = True
    takes_whole_steps: ClassVar[bool] = True

    def __init__(self, parts: Parts, stages: Stages) -> None:
        super().__init__(parts)
        config, plan, group = parts.config, parts.plan, parts.group
        self._stages = stages
        self._waits = parts.waits
        self._layout = stages.mesh.layout
        self._weights = self._here()
        """What the optimizer steps: where ranks of ``shard`` keep pieces, these."""
        self._shared = [name for name, holders in stages.weights.items() if len(holders) > 1]
        ranks, pp = group.data_size, self._layout.pp
        of_all = [_micro_batches(plan, config, rank, ranks, pp) for rank in range(ranks)]
        for _, count in of_all:
            # Those of every rank, so that all ranks refuse what one cannot do.
            demand_fit(config.pipeline_schedule, count, pp)
        self._size, self._count = of_all[group.data_rank]
        own = {number: stages.modules[number] for number in stages.own}
        self._computation = StageComputation(own, config.precision, config.seed, group.device)
        self._schedule: Any = None
        self._loss: Callable[[Tensor, int], Tensor] | None = None

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Ranks that have no samples of the step give others their pieces, too."""
        if self._stages.pieces is not None:
            self._stages.pieces.gather(self._waits)

    def whole(self, batch: Batch, here: int, samples: int, scaled: Callable[[Tensor], Tensor]) -> Tensor:
        """One run of the schedule; the sum of the losses, 0 where the last stage is elsewhere."""
        pieces = micro_batches(batch, here, self._size)
        sizes = [len(range(here)[start : start + self._size]) for start in range(0, here, self._size)]
        total = torch.zeros((), dtype=torch.float64, device=self._group.device)
        self._computation.begin()
        inputs = torch.cat([self._inputs(each) for each in pieces])
        answer = self._stages.streams(inputs[:1].expand(self._size, *inputs.shape[1:]))[-1]

        def loss(output: Tensor, number: int) -> Tensor:
            if number >= len(pieces):
                return output.sum() * 0.0
            losses = whole_losses(self._losses(_Answer(answer.joined(output)[: sizes[number]]), pieces[number]))
            total.add_(losses.detach().sum(dtype=torch.float64))
            return scaled(losses).sum() / samples

        filled = inputs[:1].expand(self._size * self._count - here, *inputs.shape[1:])
        self._run(torch.cat([inputs, filled]), loss)
        return total

    def _run(self, inputs: Tensor, loss: Callable[[Tensor, int], Tensor]) -> None:
        own, last = self._stages.own, len(self._stages.modules) - 1
        with self._group.watched_pass(), _as_it_was(), self._around(), timed_transfers(self._waits):
            if self._schedule is None:
                self._schedule = self._make(inputs[: self._size])
            self._loss = loss
            numbers = {"target": torch.arange(self._count)} if last in own else {}
            self._schedule.step(*((inputs,) if 0 in own else ()), **numbers, return_outputs=False)
            self._loss = None

    def _make(self, example: Tensor) -> Any:
        """The schedule for micro-batches like this one."""
        streams = self._stages.streams(example)
        count = len(self._stages.modules)
        with self._group.watched():
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
                for number in self._stages.own
            ]
            return make_schedule(self._stages.kind, made, self._count, self._loss_of)

    def _loss_of(self, output: Tensor, number: Tensor) -> Tensor:
        assert self._loss is not None  # noqa: S101 - the schedule runs inside of a step
        return self._loss(output, int(number))

    def _inputs(self, batch: Batch) -> Tensor:
        """What the losses of a task ask the model about."""
        question = _Question()
        try:
            self._losses(question, batch)
        except _Asked:
            if len(question.asked) == 1 and isinstance(question.asked[0], Tensor):
                return question.asked[0]
        raise BadTask(
            "--parallel has pp, and losses() of the task does not call its model with one tensor.",
            hint="Let losses() begin with model(inputs), where inputs is a tensor of a row for each sample.",
        )

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - the losses were divided by it
        """Add up gradients over the stages that have the same weight, over ``shard``, and over replicas."""
        with self._group.watched():
            for weight in self._here():
                settle(weight)
            for name in self._shared:
                with self._waits.during(Wait.STAGE):  # the others may not be through with the schedule
                    self._add_up_over_stages(self.model.get_parameter(name))
            if self._stages.pieces is not None:
                self._stages.pieces.deal_out(self._waits)
            if self._layout.replicate > 1:
                add_up_along(self._weights, self._stages.mesh, "replicate", self._adding_up)

    def _here(self) -> list[nn.Parameter]:
        """Weights of this rank's stages, as they are now: whole in a step."""
        return [weight for weight in self.model.parameters() if weight.requires_grad and not weight.is_meta]

    def _add_up_over_stages(self, weight: nn.Parameter) -> None:
        if weight.grad is None:  # it is in other stages, which ask all
            own = piece(weight)
            gradient = torch.zeros(own.shape, dtype=own.dtype, device=self._group.device)
        else:
            gradient = piece(weight.grad)
        dist.all_reduce(gradient, group=self._stages.process_group)

    def _adding_up(self) -> AbstractContextManager[None]:
        """Around an exchange between replicas, which those of a sharded model alone are told to wait for."""
        return nullcontext() if self._stages.pieces is None else self._waits.during(Wait.REDUCE_SCATTER)

    def _around(self) -> AbstractContextManager[None]:
        return in_slices() if self._layout.tp > 1 else uncompiled()

    def loss_for_vote(self, own: Tensor) -> Tensor:
        """Known where the last stage is, and told to the others."""
        told = own.clone()
        with self._group.watched(), self._waits.during(Wait.STAGE):
            dist.all_reduce(told, group=self._stages.process_group)
        return told


def _micro_batches(plan: BatchPlan, config: Config, rank: int, ranks: int, pp: int) -> tuple[int, int]:
    """Samples of a micro-batch, and how many of them a data rank makes of its part of a batch."""
    length = min(plan.global_batch, plan.samples)
    shards = owned(plan.shards, ranks, rank)
    most = sum(len(range(length)[cut(length, plan.shards, shard)]) for shard in shards)
    size = micro_batch_size(most, config.micro_batch, pp)
    return size, -(-most // size)


class _Asked(Exception):
    """The model was called, and more need not be known."""


class _Question(nn.Module):
    """Stands for the model, to learn what it is asked."""

    asked: tuple[Any, ...] = ()

    def forward(self, *inputs: Any) -> Tensor:
        """Ends whatever asked."""
        self.asked = inputs
        raise _Asked


class _Answer(nn.Module):
    """Stands for the model where its answer is known."""

    def __init__(self, answer: Tensor) -> None:
        super().__init__()
        self._answer = answer

    def forward(self, *_: Any) -> Tensor:
        """The answer."""
        return self._answer


def _as_passed(shape: Tensor) -> Tensor:
    """With gradients on the way back, where its numbers have any."""
    return shape.detach().requires_grad_(shape.is_floating_point())


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Raise what a stage has raised: torch's stages put it into a RuntimeError of their own, of many lines."""
    try:
        yield
    except RuntimeError as err:
        if isinstance(err.__cause__, TrainError | RuntimeError):
            raise err.__cause__ from None
        raise
