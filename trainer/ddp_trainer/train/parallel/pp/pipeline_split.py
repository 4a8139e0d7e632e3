"""Split a model into pipeline stages over the ranks of the mesh dimension ``pp``, before its optimizer is built.

:func:`split_stages` is the entry point. A schedule is the order in which a rank computes forward and backward of its
micro-batches; :data:`KINDS` has torch's schedules by name, and :func:`make_schedule` builds one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.func import functional_call

from ddp_trainer.common.trainer_options import SCHEDULES, PipelineSchedule, of_micro_batches
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.task import Task, call_user_function, kind_of
from ddp_trainer.train.deferred_init.param_broadcast import init_pieces, send_from_first
from ddp_trainer.train.deferred_init.skip_init import is_deferred, materialize
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.sharded_state import local_shard
from ddp_trainer.train.parallel.pp.pp_zero import StageZero
from ddp_trainer.train.parallel.pp.stage_transfer import TensorSpec, without_memory
from ddp_trainer.train.parallel.tensor_parallel import apply_tp
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig, BadTask


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """Kind of a pipeline schedule: its class in torch, and how stages are placed on ranks."""

    of_torch: Callable[..., Any]
    stages_per_rank: int
    turns_back: bool = False
    """Stages are placed in a V: the second half is in reverse order of ranks. The first rank has the last stage."""

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Return the numbers of a rank's stages, in ascending order."""
        if self.turns_back:
            return rank, 2 * ranks - 1 - rank
        return tuple(range(rank, ranks * self.stages_per_rank, ranks))


_OF_TORCH: Final[Mapping[PipelineSchedule, Callable[..., Any]]] = {
    PipelineSchedule.GPIPE: pipelining.ScheduleGPipe,
    PipelineSchedule.ONE_F_ONE_B: pipelining.Schedule1F1B,
    PipelineSchedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
    PipelineSchedule.ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
    PipelineSchedule.ZERO_BUBBLE_V: pipelining.ScheduleZBVZeroBubble,
}
KINDS: Final[Mapping[PipelineSchedule, ScheduleKind]] = {
    name: ScheduleKind(schedule, SCHEDULES[name].stages_per_rank, turns_back=name is PipelineSchedule.ZERO_BUBBLE_V)
    for name, schedule in _OF_TORCH.items()
}
"""Schedules by name; :mod:`ddp_trainer.common.trainer_options` has their limits on the number of micro-batches."""


def check_micro_batches(name: PipelineSchedule, micro_batches: int, ranks: int) -> None:
    """Check that a schedule supports this number of micro-batches.

    Args:
        name: The schedule.
        micro_batches: Number of micro-batches of one step on one data rank.
        ranks: Number of ranks of the pipeline.

    Raises:
        BadConfig: There are too few micro-batches, or they do not form whole rounds.
    """
    for misfit in of_micro_batches(name, micro_batches, pp=ranks):
        raise BadConfig(misfit.message, hint=misfit.help)


def make_schedule(
    kind: ScheduleKind, stages: Sequence[PipelineStage], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """Return torch's schedule; it sums gradients over micro-batches and does not divide by their number.

    Args:
        kind: Kind of schedule.
        stages: Stages of this rank.
        micro_batches: Number of micro-batches of one step.
        loss: Returns a float scalar from the last stage's output and the target of a micro-batch.
    """
    own = list(stages) if kind.stages_per_rank > 1 else stages[0]
    return kind.of_torch(own, micro_batches, loss_fn=loss, scale_grads=False)


@dataclass(frozen=True, slots=True)
class Stages:
    """All stages of a model; only this rank's stages have weights in memory."""

    modules: Sequence[nn.Module]
    kind: ScheduleKind
    mesh: Mesh
    group: Group
    weights: Mapping[str, tuple[int, ...]]
    """Ranks of ``pp`` that hold each weight, in ascending order, by its name in the model."""
    pieces: StageZero | None = None
    """The sharded weights of this rank's stages; None without ``shard``."""
    _streams: dict[tuple[torch.Size, torch.dtype], Sequence[TensorSpec]] = field(default_factory=dict)

    @property
    def local_stages(self) -> tuple[int, ...]:
        """Numbers of this rank's stages."""
        return self.kind.stages_of(self.mesh.place.pp, self.mesh.layout.pp)

    def holder(self, stage: int) -> int:
        """Return the rank of ``pp`` that holds a stage."""
        return holder_of(stage, self.kind, self.mesh.layout.pp)

    def streams(self, inputs: Tensor) -> Sequence[TensorSpec]:
        """Return the form of each stage's input and, last, of the output of the last stage.

        Weights must be whole when it is called.

        Args:
            inputs: Inputs of the first stage; only their shape and dtype matter.

        Raises:
            BadTask: A stage does not return exactly one tensor.
        """
        kind = inputs.shape, inputs.dtype
        if kind not in self._streams:
            self._streams[kind] = self._passed_on(inputs)
        return self._streams[kind]

    def _passed_on(self, inputs: Tensor) -> Sequence[TensorSpec]:
        given = torch.empty_like(inputs, device="meta")
        streams = [TensorSpec.like(given)]
        for number, module in enumerate(self.modules):
            state = {name: without_memory(tensor) for name, tensor in module.state_dict().items()}
            with uncompiled():
                output = functional_call(module, state, (given,))
            if not isinstance(output, Tensor):
                raise BadTask(
                    f"Stage {number} of the pipeline gives a {type(output).__name__}.",
                    hint="Let every stage take one tensor and give one.",
                )
            streams.append(TensorSpec.like(output))
            given = streams[-1].from_local(streams[-1].here)
        return streams

    def full_params(self) -> AbstractContextManager[None]:
        """Return a context in which weights are whole, for a pass without gradients."""
        return nullcontext() if self.pieces is None else self.pieces.full_weights()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the output of the whole model on every rank, without gradients.

        Every rank of the pipeline must call it.

        Args:
            inputs: Batch of the first stage, any shape and dtype, the same on all ranks of the pipeline.

        Returns:
            Output of the last stage; a DTensor if that stage's is one.
        """
        with self.full_params():
            streams, me = self.streams(inputs), self.mesh.place.pp
            here = inputs
            for number, module in enumerate(self.modules):
                holder = self.holder(number)
                if holder == me:
                    if number and self.holder(number - 1) != me:
                        here = self._recv_tensor(streams[number].here, self.holder(number - 1))
                    here = streams[number + 1].local_output(module(streams[number].from_local(here)))
                    if number + 1 < len(self.modules) and self.holder(number + 1) != me:
                        dist.send(here.contiguous(), self.rank(self.holder(number + 1)), self.process_group)
            last = self.holder(len(self.modules) - 1)
            output = here.contiguous() if last == me else self._empty(streams[-1].here)
            dist.broadcast(output, self.rank(last), self.process_group)
            return streams[-1].from_local(output)

    def send_shared(self, model: nn.Module, loaded: Collection[str]) -> None:
        """Copy shared weights from the first rank that holds them to the other holders; every rank must call it.

        Args:
            model: The model.
            loaded: Names of weights that are loaded later, which are skipped.
        """
        shared = [name for name, holders in self.weights.items() if len(holders) > 1 and name not in loaded]
        with self.group.convert_errors(), torch.no_grad():
            for name in shared:
                own = local_shard(model.get_parameter(name).detach())
                sent = self._empty(own) if own.is_meta else own
                dist.broadcast(sent, self.rank(self.weights[name][0]), self.process_group)

    def train_with(self, model: nn.Module) -> Callable[[bool], nn.Module]:
        """Return a replacement of the model's ``train`` that also reaches modules that only a stage has."""
        train = model.train

        def both(mode: bool = True) -> nn.Module:
            for number in self.local_stages:
                self.modules[number].train(mode)
            return train(mode)

        return both

    @property
    def process_group(self) -> dist.ProcessGroup:
        """Process group of the ranks of this pipeline."""
        return self.mesh.along("pp").get_group()

    def rank(self, holder: int) -> int:
        """Return the global rank of a rank of ``pp``."""
        return dist.get_global_rank(self.process_group, holder)

    def _recv_tensor(self, shape: Tensor, holder: int) -> Tensor:
        received = self._empty(shape)
        dist.recv(received, self.rank(holder), self.process_group)
        return received

    def _empty(self, shape: Tensor) -> Tensor:
        return torch.empty(shape.shape, dtype=shape.dtype, device=self.group.device)


def split_stages(
    model: nn.Module,
    task: Task,
    config: Config,
    mesh: Mesh,
    group: Group,
    loaded: Collection[str],
) -> Stages:
    """Cut the model in place: into stages, these into slices (``tp``), and these into shards (``shard``).

    This rank's weights are whole while stages are built, as in every step, and sharded last.

    Args:
        model: The model.
        task: The task, which may define the stages and the tensor-parallel plan.
        config: The configuration.
        mesh: The mesh of the ranks.
        group: The group of the ranks.
        loaded: Names of weights that are loaded later, which are not initialized.

    Raises:
        BadConfig: The model defines no stages, has too few layers, keeps running statistics, has one weight under two
            names, or has no plan for slices.
        BadTask: The stages together do not form the model, or a plan names a module that does not exist.
    """
    kind, ranks = KINDS[config.pipeline_schedule], mesh.layout.pp
    check_pipeline_model(model, ranks)
    modules = stages_of(model, task, ranks * kind.stages_per_rank)
    weights = _stages_by_weight(model, modules, task, kind, ranks)
    others = {name for name, holders in weights.items() if mesh.place.pp not in holders}
    if not (deferred := is_deferred(model)):
        _drop(model, others)
        _move(model, group.device)
    if mesh.layout.tp > 1:
        apply_tp(model, task, mesh, group)
    stages = Stages(modules, kind, mesh, group, weights)
    check_shared_weights(model, stages, task)
    if deferred:
        materialize(model, group.device, without=others)
        init_pieces(model, task, config.seed, mesh, group, loaded)
    else:
        send_from_first(model, mesh, group, loaded)
    stages.send_shared(model, loaded)
    if mesh.layout.shard > 1:
        stages = replace(stages, pieces=StageZero(model, modules, mesh, group))
    model.forward = stages.forward
    model.train = stages.train_with(model)  # type: ignore[method-assign,assignment] # torch types train as a method
    return stages


def check_pipeline_model(model: nn.Module, ranks: int) -> None:
    """Check that the model has no state on which the stages of different ranks would diverge.

    Args:
        model: The model.
        ranks: Number of ranks of ``pp``, for the message.

    Raises:
        BadConfig: The model has buffers, or one weight under two names.
    """
    subject = f"--parallel has pp={ranks}, and the model, a {type(model).__name__}, has"
    if any(True for _ in model.buffers()):
        raise BadConfig(f"{subject} buffers, which stages would keep apart.", hint="Leave pp out.")
    names = {id(weight): name for name, weight in model.named_parameters()}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name != (first := names[id(weight)]):
            raise BadConfig(
                f"{subject} one weight under two names, {first!r} and {name!r}, which stages would keep apart.",
                hint="Keep it in one module, let the other one use it from there, or leave pp out.",
            )


def stages_of(model: nn.Module, task: Task, count: int) -> list[nn.Module]:
    """Return the stages, built by ``pipeline_stage`` of the task or else of the model.

    Args:
        model: The model.
        task: The task.
        count: Number of stages.

    Raises:
        BadConfig: Neither has a ``pipeline_stage``, or the model has too few layers.
        BadTask: It returns no module, or the model itself.
    """
    of_task: Any = getattr(task, "pipeline_stage", None)
    of_model: Any = getattr(model, "pipeline_stage", None)
    if of_task is None and of_model is None:
        raise BadConfig(
            f"--parallel has pp, and neither the task {task.name!r} nor its model, a {type(model).__name__}, has a "
            "pipeline_stage.",
            hint="Give the task a method pipeline_stage(model, index, count) that returns a module, or leave pp out.",
        )
    stages = []
    for index in range(count):
        if of_task is not None:
            whose = f"The pipeline_stage of the task {task.name!r}"
            stage = call_user_function(of_task, whose, model=model, index=index, count=count)
        else:
            whose = f"The pipeline_stage of the model, a {type(model).__name__},"
            stage = call_user_function(of_model, whose, index=index, count=count)
        if stage is model or not isinstance(stage, nn.Module):
            given = "the model itself" if stage is model else f"{kind_of(stage)}, and no module"
            raise BadTask(
                f"{whose} returns {given}, for stage {index} of {count}.",
                hint="Let it return a module of its layers alone, under the names that they have in the model.",
            )
        stages.append(stage)
    return stages


def _stages_by_weight(
    model: nn.Module, modules: Sequence[nn.Module], task: Task, kind: ScheduleKind, ranks: int
) -> dict[str, tuple[int, ...]]:
    names = [name for name, _ in model.named_parameters()]
    holders: dict[str, set[int]] = {name: set() for name in names}
    for number, module in enumerate(modules):
        for name, _ in module.named_parameters():
            if name not in holders:
                raise BadTask(
                    f"Stage {number} of the task {task.name!r} has a weight {name!r}, which the model has not.",
                    hint=f"Let stages name their weights as the model does: {', '.join(names[:5])}.",
                )
            holders[name].add(holder_of(number, kind, ranks))
    if missing := [name for name, of in holders.items() if not of]:
        raise BadTask(
            f"No stage of the task {task.name!r} has the weight {missing[0]!r} of the model.",
            hint="Let pipeline_stage give each layer to some stage.",
        )
    return {name: tuple(sorted(of)) for name, of in holders.items()}


def check_shared_weights(model: nn.Module, stages: Stages, task: Task) -> None:
    """Check that stages use the model's own weights: copies would not be trained or cut.

    Args:
        model: The complete model.
        stages: Stages of the pipeline.
        task: Task of the run, for the message.

    Raises:
        BadTask: A stage holds a weight that is not the model's.
    """
    named = dict(model.named_parameters())
    for number in stages.local_stages:
        for name, weight in stages.modules[number].named_parameters():
            if named[name] is not weight:
                raise BadTask(
                    f"Stage {number} of the task {task.name!r} has the weight {name!r} in another module.",
                    hint="Return modules of the model unchanged from pipeline_stage.",
                )


def holder_of(stage: int, kind: ScheduleKind, ranks: int) -> int:
    """Return the rank of ``pp`` that holds a stage.

    Args:
        stage: Number of the stage, from 0.
        kind: Kind of schedule.
        ranks: Number of ranks of the pipeline.
    """
    return next(rank for rank in range(ranks) if stage in kind.stages_of(rank, ranks))


def _drop(model: nn.Module, names: set[str]) -> None:
    """Free these weights; name, shape and requires_grad stay, because optimizers may choose weights by them."""
    for name in names:
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        weight = module.get_parameter(last)
        empty = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        module.register_parameter(last, empty)


def _move(model: nn.Module, device: torch.device) -> None:
    for weight in model.parameters():
        if not weight.is_meta:
            weight.data = weight.data.to(device)
