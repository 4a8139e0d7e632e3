"""Tensor parallelism: a model is cut by a plan before its optimizer is built, and trained in slices.

:func:`apply_tp` cuts the model. :class:`TensorParallel` is the strategy of ``--parallel tp=N`` without ``shard``. The
other functions serve the strategies in which layers are cut too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, parallel
from torch.distributed.tensor.parallel import loss_parallel

from ddp_trainer.train.data.task import Batch, Task, call_user_function, kind_of
from ddp_trainer.train.distributed.grad_allreduce import buckets
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh, PerRankRng, shared_rng
from ddp_trainer.train.mesh.sharded_state import local_shard
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig, BadTask


class TensorParallel(Strategy):
    """Strategy for a model that :func:`ddp_trainer.train.parallel.tensor_parallel.apply_tp` has cut."""

    computes_together = True

    def __init__(self, arguments: StrategyArguments, mesh: Mesh) -> None:
        super().__init__(arguments)
        self._mesh = mesh

    def forward(self, batch: Batch) -> Tensor:
        """Return whole losses; logits stay sharded over the vocabulary if the plan leaves them so."""
        with self._group.convert_pass_errors(), in_slices():
            return full_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of losses that were computed from slices.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        with self._group.convert_pass_errors(), in_slices():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Give each gradient the placement of its weight, and add gradients up over replicas."""
        with self._group.convert_errors():
            for weight in self._weights:
                redistribute_gradient(weight)
            if self._mesh.layout.replicate > 1:
                add_up_along(self._weights, self._mesh, "replicate")


@contextmanager
def in_slices() -> Iterator[None]:
    """Context of forward and backward passes of a sliced model: losses are computed from slices of logits."""
    with uncompiled(), loss_parallel():
        yield


def full_losses(losses: Tensor) -> Tensor:
    """Return the whole losses on every rank of a tensor-parallel group; gradients flow back to the slices.

    Args:
        losses: Losses, float ``(n,)``, a DTensor or a plain tensor. A plain tensor is returned unchanged.
    """
    return losses.full_tensor() if isinstance(losses, DTensor) else losses


def redistribute_gradient(weight: nn.Parameter) -> None:
    """Give a weight's gradient the placement of the weight; partial sums are added up.

    A weight without a gradient gets zeros, because other replicas may have one.
    """
    gradient = weight.grad
    if gradient is None:
        weight.grad = torch.zeros_like(weight)
    elif isinstance(gradient, DTensor) and isinstance(weight, DTensor) and gradient.placements != weight.placements:
        weight.grad = gradient.redistribute(placements=weight.placements)


def add_up_along(
    weights: list[nn.Parameter],
    mesh: Mesh,
    dimension: str,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Sum the gradients over the ranks of one mesh dimension, in place.

    Args:
        weights: Weights whose gradients are summed; those without a gradient are skipped.
        mesh: The mesh of the ranks.
        dimension: Name of the mesh dimension.
        waiting: Context that is entered around each all-reduce, for example a timer.
    """
    group = mesh.along(dimension).get_group()
    with torch.no_grad():
        for bucket in buckets(weights):
            pieces = [local_shard(weight.grad) for weight in bucket if weight.grad is not None]
            flat = torch.cat([piece.flatten() for piece in pieces])
            with waiting():
                dist.all_reduce(flat, group=group)
            for own, added in zip(pieces, torch.split(flat, [piece.numel() for piece in pieces]), strict=True):
                own.copy_(added.view_as(own))


WORDS: Final[Mapping[str, type[parallel.ParallelStyle]]] = {
    "colwise": parallel.ColwiseParallel,
    "rowwise": parallel.RowwiseParallel,
    "sequence": parallel.SequenceParallel,
    "apart": PerRankRng,
}
"""Styles by name. ``colwise`` cuts the outputs of a linear layer, ``rowwise`` its inputs, ``sequence`` the tokens of a
norm. ``apart`` gives a module different random numbers on each rank, for example a dropout of ``colwise`` outputs."""

_EXAMPLE: Final = "{'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}"
_SHOWN: Final = 5
"""Maximum number of names in a hint."""


def find_plan(model: nn.Module, task: Task, tp: int) -> Mapping[str, parallel.ParallelStyle]:
    """Return the validated plan of this model.

    Args:
        model: The model.
        task: The task, whose own ``tp_plan`` takes precedence.
        tp: Number of ranks of the dimension ``tp``.

    Raises:
        BadConfig: There is no plan, or the model cannot be cut for this number of ranks.
        BadTask: The plan has the wrong form, names a module that does not exist, or an unknown style.
    """
    whose = f"The tp_plan of the task {task.name!r}"
    given: Any = getattr(task, "tp_plan", None)
    if given is not None:
        plan = call_user_function(given, whose, model=model) if callable(given) else given
    elif callable(own := getattr(model, "tp_plan", None)):
        whose = f"The tp_plan of the model, a {type(model).__name__},"
        plan = call_user_function(own, whose, tp=tp)
    else:
        raise BadConfig(
            f"--parallel has tp={tp}, and neither the task {task.name!r} nor its model, a {type(model).__name__}, has "
            "a tp_plan.",
            hint=f"Give the task a tp_plan, as {_EXAMPLE}, or leave tp out.",
        )
    _check_plan_format(plan, whose)
    names = [name for name, _ in model.named_modules() if name]
    for pattern in plan:
        check_module_match(pattern, names, whose)
    styles = {pattern: _style(pattern, style, task) for pattern, style in plan.items()}
    for pattern, style in styles.items():
        _check_layer_type(pattern, style, model, task)
    return styles


def _check_plan_format(plan: Any, whose: str) -> None:
    """Raise BadTask unless the plan is a mapping with at least one entry, and all its keys are strings."""
    wrong = ""
    if not isinstance(plan, Mapping):
        wrong = f"{whose} gives {kind_of(plan)}, and no mapping."
    elif not plan:
        wrong = f"{whose} is empty, and nothing would be cut."
    elif (other := next((key for key in plan if not isinstance(key, str)), "")) != "":
        wrong = f"{whose} has {other!r} where a name of a module should be."
    if wrong:
        raise BadTask(wrong, hint=f"Give names of modules and how each is cut, as {_EXAMPLE}, or leave tp out.")


def check_module_match(pattern: str, names: list[str], whose: str) -> None:
    """Check that a pattern matches at least one module.

    Args:
        pattern: Name of a module, in which ``*`` stands for one part.
        names: Names of all modules of the model.
        whose: Source of the pattern, for the message.

    Raises:
        BadTask: It matches none; the hint lists the closest names.
    """
    wanted = _matcher(pattern)
    if any(wanted.fullmatch(name) for name in names):
        return
    near = get_close_matches(pattern, names, n=_SHOWN, cutoff=0.3) or names[:_SHOWN]
    raise BadTask(
        f"{whose} names {pattern!r}, and the model has no such module.",
        hint=f"It has {', '.join(near)}{' and others' if len(names) > len(near) else ''}.",
    )


def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))


def _check_layer_type(pattern: str, style: parallel.ParallelStyle, model: nn.Module, task: Task) -> None:
    """Raise BadTask if colwise or rowwise is applied to anything but nn.Linear and nn.Embedding."""
    if not isinstance(style, parallel.ColwiseParallel | parallel.RowwiseParallel):
        return
    wanted = _matcher(pattern)
    for name, module in model.named_modules():
        if wanted.fullmatch(name) and not isinstance(module, nn.Linear | nn.Embedding):
            raise BadTask(
                f"The tp_plan of the task {task.name!r} cuts {name} by {type(style).__name__}, and it is a "
                f"{type(module).__name__}: that is for nn.Linear and nn.Embedding.",
                hint="Name the layers inside of it, or leave it out.",
            )


def _style(pattern: str, style: object, task: Task) -> parallel.ParallelStyle:
    if isinstance(style, parallel.ParallelStyle):
        return style
    if not isinstance(style, str) or style not in WORDS:
        raise BadTask(
            f"The tp_plan of the task {task.name!r} has {style!r} for {pattern!r}.",
            hint=f"Give one of {', '.join(WORDS)}, or a ParallelStyle of torch.",
        )
    return WORDS[style]()


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
        parallel.parallelize_module(model, mesh.along("tp"), dict(plan))
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
