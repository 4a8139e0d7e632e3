"""Cut a model into stages of consecutive layers over the ranks of the dimension ``pp``; before its optimizer is built.

The model stays the object that it was, with the names that it has. Weights of the stages of other ranks become tensors
on torch's meta device, which have a shape and no memory; and calling the model sends its input through the stages of
all ranks, who must call it together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from ddp_trainer.train.config import Config
from ddp_trainer.train.errors import BadConfig, BadTask
from ddp_trainer.train.group import Group
from ddp_trainer.train.mesh import Mesh
from ddp_trainer.train.strategies.pipeline_schedule import KINDS, Kind
from ddp_trainer.train.task import Task
from ddp_trainer.train.tensor_plan import demand_no_dropout


@dataclass(frozen=True, slots=True)
class Stages:
    """All stages of a model; the weights of this rank's are real."""

    modules: Sequence[nn.Module]
    kind: Kind
    mesh: Mesh
    group: Group
    weights: Mapping[str, tuple[int, ...]]
    """Ranks of ``pp`` that have each, by its name in the model."""

    @property
    def own(self) -> tuple[int, ...]:
        """This rank's stages."""
        return self.kind.stages_of(self.mesh.place.pp, self.mesh.layout.pp)

    def holder(self, stage: int) -> int:
        """The rank of ``pp`` that has a stage."""
        return holder_of(stage, self.kind, self.mesh.layout.pp)

    def shapes(self, inputs: Tensor) -> list[Tensor]:
        """What each stage takes, and at the end what the last one gives, as tensors without memory.

        Raises:
            BadTask: a stage gives something else than one tensor.
        """
        given = [torch.empty_like(inputs, device="meta")]
        for number, module in enumerate(self.modules):
            state = {name: torch.empty_like(each, device="meta") for name, each in module.state_dict().items()}
            output = functional_call(module, state, (given[-1],))
            if not isinstance(output, Tensor):
                raise BadTask(
                    f"Stage {number} of the pipeline gives a {type(output).__name__}.",
                    hint="Let every stage take one tensor and give one.",
                )
            given.append(output)
        return given

    def forward(self, inputs: Tensor) -> Tensor:
        """What the whole model gives, on every rank; no gradients come of it."""
        shapes = self.shapes(inputs)
        stream, me = inputs, self.mesh.place.pp
        for number, module in enumerate(self.modules):
            holder = self.holder(number)
            if holder == me:
                if number and self.holder(number - 1) != me:
                    stream = self._received(shapes[number], self.holder(number - 1))
                stream = module(stream)
                if number + 1 < len(self.modules) and self.holder(number + 1) != me:
                    dist.send(stream.contiguous(), self.rank(self.holder(number + 1)), self.process_group)
        last = self.holder(len(self.modules) - 1)
        output = stream.contiguous() if last == me else self._empty(shapes[-1])
        dist.broadcast(output, self.rank(last), self.process_group)
        return output

    @property
    def process_group(self) -> dist.ProcessGroup:
        """Of the ranks that this one makes a pipeline with."""
        return self.mesh.along("pp").get_group()

    def rank(self, holder: int) -> int:
        """In the whole group, of a rank of ``pp``."""
        return dist.get_global_rank(self.process_group, holder)

    def _received(self, shape: Tensor, holder: int) -> Tensor:
        received = self._empty(shape)
        dist.recv(received, self.rank(holder), self.process_group)
        return received

    def _empty(self, shape: Tensor) -> Tensor:
        return torch.empty(shape.shape, dtype=shape.dtype, device=self.group.device)


def cut_into_stages(model: nn.Module, task: Task, config: Config, mesh: Mesh, group: Group) -> Stages:
    """Cut the model in place.

    Raises:
        BadConfig: it says nothing of stages, has too few layers, draws at random, or keeps running statistics.
        BadTask: its stages together are not the model.
    """
    kind, ranks = KINDS[config.pipeline_schedule], mesh.layout.pp
    demand_no_dropout(model, f"pp={ranks}")
    if any(True for _ in model.buffers()):
        raise BadConfig(
            f"--parallel has pp={ranks}, and the model, a {type(model).__name__}, has buffers, which stages would keep "
            "apart.",
            hint="Leave pp out.",
        )
    modules = _stages(model, task, ranks * kind.stages_per_rank)
    weights = _holders(model, modules, task, kind, ranks)
    _drop(model, {name for name, holders in weights.items() if mesh.place.pp not in holders})
    _move(model, group.device)
    stages = Stages(modules, kind, mesh, group, weights)
    model.forward = stages.forward
    return stages


def _stages(model: nn.Module, task: Task, count: int) -> list[nn.Module]:
    stage: Any = getattr(task, "pipeline_stage", None)
    if stage is not None:
        return [stage(model, index, count) for index in range(count)]
    own: Any = getattr(model, "pipeline_stage", None)
    if own is None:
        raise BadConfig(
            f"--parallel has pp, and neither the task {task.name!r} nor its model, a {type(model).__name__}, has a "
            "pipeline_stage.",
            hint="Give the task a method pipeline_stage(model, index, count) that returns a module, or leave pp out.",
        )
    return [own(index, count) for index in range(count)]


def _holders(
    model: nn.Module, modules: Sequence[nn.Module], task: Task, kind: Kind, ranks: int
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


def holder_of(stage: int, kind: Kind, ranks: int) -> int:
    """The rank of ``pp`` that has a stage."""
    return next(rank for rank in range(ranks) if stage in kind.stages_of(rank, ranks))


def _drop(model: nn.Module, names: set[str]) -> None:
    """Let go of these weights; shape and name stay."""
    for name in names:
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        weight = module.get_parameter(last)
        empty = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
        module.register_parameter(last, empty)


def _move(model: nn.Module, device: torch.device) -> None:
    for weight in model.parameters():
        if not weight.is_meta:
            weight.data = weight.data.to(device)
