"""The plan by which tensors are cut: the task's own, the model's, or a sentence that says what is missing.

A plan is a mapping from names of modules, with ``*`` for any one part of a name, to how each is cut: one of
:data:`WORDS`, or a ``ParallelStyle`` of torch. A task hands it over as ``tp_plan``, a mapping or a function of the
model; a model as a method ``tp_plan(tp)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, SequenceParallel

from ddp_trainer.train.data.task import Task
from ddp_trainer.train.data.user_callable import ask, kind_of
from ddp_trainer.train.mesh.tp_rng import PerRankRng
from ddp_trainer.train.utils.errors import BadConfig, BadTask

WORDS: Final[Mapping[str, type[ParallelStyle]]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "sequence": SequenceParallel,
    "apart": PerRankRng,
}
"""``colwise`` cuts the outputs of a linear layer, ``rowwise`` its inputs, ``sequence`` the tokens of a norm; ``apart``
lets a module draw other random numbers on each rank, as a dropout of what ``colwise`` has cut."""

_EXAMPLE: Final = "{'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}"
_SHOWN: Final = 5
"""Of many names, how many a sentence tells."""


def find_plan(model: nn.Module, task: Task, tp: int) -> Mapping[str, ParallelStyle]:
    """The plan of this model, which is known to fit it.

    Raises:
        BadConfig: there is none, or the model cannot be cut among so many ranks.
        BadTask: it is none, or names a module that does not exist, or a way to cut that is none.
    """
    whose = f"The tp_plan of the task {task.name!r}"
    given: Any = getattr(task, "tp_plan", None)
    if given is not None:
        plan = ask(given, whose, model=model) if callable(given) else given
    elif callable(own := getattr(model, "tp_plan", None)):
        whose = f"The tp_plan of the model, a {type(model).__name__},"
        plan = ask(own, whose, tp=tp)
    else:
        raise BadConfig(
            f"--parallel has tp={tp}, and neither the task {task.name!r} nor its model, a {type(model).__name__}, has "
            "a tp_plan.",
            hint=f"Give the task a tp_plan, as {_EXAMPLE}, or leave tp out.",
        )
    _demand_form(plan, whose)
    names = [name for name, _ in model.named_modules() if name]
    for pattern in plan:
        demand_module(pattern, names, whose)
    styles = {pattern: _style(pattern, style, task) for pattern, style in plan.items()}
    for pattern, style in styles.items():
        _demand_layer(pattern, style, model, task)
    return styles


def _demand_form(plan: Any, whose: str) -> None:
    """Of a plan: names of modules, and at least one."""
    wrong = ""
    if not isinstance(plan, Mapping):
        wrong = f"{whose} gives {kind_of(plan)}, and no mapping."
    elif not plan:
        wrong = f"{whose} is empty, and nothing would be cut."
    elif (other := next((key for key in plan if not isinstance(key, str)), "")) != "":
        wrong = f"{whose} has {other!r} where a name of a module should be."
    if wrong:
        raise BadTask(wrong, hint=f"Give names of modules and how each is cut, as {_EXAMPLE}, or leave tp out.")


def demand_module(pattern: str, names: list[str], whose: str) -> None:
    """Refuse a name of no module.

    Raises:
        BadTask: with those that are most like it.
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


def _demand_layer(pattern: str, style: ParallelStyle, model: nn.Module, task: Task) -> None:
    """Of the ways to cut a layer's weights, which are for two kinds of layers."""
    if not isinstance(style, ColwiseParallel | RowwiseParallel):
        return
    wanted = _matcher(pattern)
    for name, module in model.named_modules():
        if wanted.fullmatch(name) and not isinstance(module, nn.Linear | nn.Embedding):
            raise BadTask(
                f"The tp_plan of the task {task.name!r} cuts {name} by {type(style).__name__}, and it is a "
                f"{type(module).__name__}: that is for nn.Linear and nn.Embedding.",
                hint="Name the layers inside of it, or leave it out.",
            )


def _style(pattern: str, style: object, task: Task) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if not isinstance(style, str) or style not in WORDS:
        raise BadTask(
            f"The tp_plan of the task {task.name!r} has {style!r} for {pattern!r}.",
            hint=f"Give one of {', '.join(WORDS)}, or a ParallelStyle of torch.",
        )
    return WORDS[style]()
