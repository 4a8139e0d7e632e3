"""Apply tensor parallelism to a model before its optimizer is built.

:func:`apply_tp` looks up the model's plan with :func:`~ddp_trainer.train.parallel.tp_plan.find_plan`. It then cuts the
weights into one slice per rank of the mesh dimension ``tp``.
"""

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
    """Cut the model in place into slices over the dimension ``tp``.

    All ranks get slices of the first rank's weights.

    Args:
        model: The model, on its device or on torch's meta device.
        task: The task, which may bring the plan.
        mesh: The mesh of the ranks, with the layout.
        group: The group of the ranks.

    Raises:
        BadConfig: The model has no plan, the plan does not fit the number of ranks, or a dropout cannot be cut.
        BadTask: The plan names a module that does not exist, or cuts a shared weight in two different ways.
    """
    plan = find_plan(model, task, mesh.layout.tp)
    frozen = [name for name, weight in model.named_parameters(remove_duplicate=False) if not weight.requires_grad]
    shared: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(weight), []).append(name)
    shared_rng(model, f"tp={mesh.layout.tp}")
    with group.convert_errors():
        parallelize_module(model, mesh.along("tp"), dict(plan))
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)  # torch makes new parameters, with requires_grad=True
    for first, *others in shared.values():
        if any(model.get_parameter(other) is not model.get_parameter(first) for other in others):
            raise BadTask(
                f"The tp_plan of the task {task.name!r} cuts {first} and {others[0]}, which are one weight, apart.",
                hint="Let the model use one module for both, as gpt does.",
            )
    model.register_forward_hook(_gather_eval_logits)


def _gather_eval_logits(model: nn.Module, _: Any, output: Any) -> Any:
    """Return whole logits in evaluation: a loss can use slices (loss_parallel), the task's metrics may not."""
    return output.full_tensor() if isinstance(output, DTensor) and not model.training else output
