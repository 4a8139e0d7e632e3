"""Cut a model into slices, one for each rank of the dimension ``tp``, by its plan; before its optimizer is built."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module

from ddp_trainer.train.data.task import Task
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.mesh.tp_rng import shared_rng
from ddp_trainer.train.parallel.tp_plan import find_plan
from ddp_trainer.train.utils.errors import BadTask


def apply_tp(model: nn.Module, task: Task, mesh: Mesh, group: Group) -> None:
    """Cut the model in place, on its device or on torch's meta device; the first rank's weights are everybody's.

    Raises:
        BadConfig: it has no plan, or one that does not fit so many ranks, or drops out in a way that cannot be cut.
        BadTask: the plan names what does not exist, or cuts one weight twice.
    """
    plan = find_plan(model, task, mesh.layout.tp)
    frozen = [name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad]
    shared: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(weight), []).append(name)
    shared_rng(model, f"tp={mesh.layout.tp}")
    with group.watched():
        parallelize_module(model, mesh.along("tp"), dict(plan))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)  # torch makes new parameters, which learn
    for first, *others in shared.values():
        if any(model.get_parameter(other) is not model.get_parameter(first) for other in others):
            raise BadTask(
                f"The tp_plan of the task {task.name!r} cuts {first} and {others[0]}, which are one weight, apart.",
                hint="Let the model use one module for both, as gpt does.",
            )
    model.register_forward_hook(_whole_in_evaluation)


def _whole_in_evaluation(model: nn.Module, _: Any, output: Any) -> Any:
    """A loss knows what to do with slices of logits; metrics are the task's own, and need not."""
    return output.full_tensor() if isinstance(output, DTensor) and not model.training else output
