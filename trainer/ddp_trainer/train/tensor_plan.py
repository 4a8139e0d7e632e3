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

from ddp_trainer.train.errors import BadConfig, BadTask
from ddp_trainer.train.task import Task

WORDS: Final[Mapping[str, type[ParallelStyle]]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "sequence": SequenceParallel,
}
"""``colwise`` cuts the outputs of a linear layer, ``rowwise`` its inputs, ``sequence`` the tokens of a norm."""

_SHOWN: Final = 5
"""Of many names, how many a sentence tells."""


def find_plan(model: nn.Module, task: Task, tp: int) -> Mapping[str, ParallelStyle]:
    """The plan of this model, which is known to fit it.

    Raises:
        BadConfig: there is none, or the model cannot be cut among so many ranks.
        BadTask: it names a module that does not exist, or a way to cut that is none.
    """
    given: Any = getattr(task, "tp_plan", None)
    if given is not None:
        plan = given(model) if callable(given) else given
    elif callable(own := getattr(model, "tp_plan", None)):
        plan = own(tp)
    else:
        raise BadConfig(
            f"--parallel has tp={tp}, and neither the task {task.name!r} nor its model, a {type(model).__name__}, has "
            "a tp_plan.",
            hint="Give the task a tp_plan, as {'layers.*.up': 'colwise', 'layers.*.down': 'rowwise'}, or leave tp out.",
        )
    names = [name for name, _ in model.named_modules() if name]
    for pattern in plan:
        demand_module(pattern, names, f"The tp_plan of the task {task.name!r}")
    return {pattern: _style(pattern, style, task) for pattern, style in plan.items()}


def demand_module(pattern: str, names: list[str], whose: str) -> None:
    """Refuse a name of no module.

    Raises:
        BadTask: with those that are most like it.
    """
    wanted = re.compile(re.escape(pattern).replace(r"\*", r"[^.]+"))
    if any(wanted.fullmatch(name) for name in names):
        return
    near = get_close_matches(pattern, names, n=_SHOWN, cutoff=0.3) or names[:_SHOWN]
    raise BadTask(
        f"{whose} names {pattern!r}, and the model has no such module.",
        hint=f"It has {', '.join(near)}{' and others' if len(names) > len(near) else ''}.",
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


def demand_no_dropout(model: nn.Module, what: str) -> None:
    """Refuse random draws inside of the model, which ranks that compute it together would make differently.

    Raises:
        BadConfig: a layer drops something out.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:  # noqa: SLF001 - the base of all of them
            raise BadConfig(
                f"--parallel has {what}, and the model drops out {module.p:g} of {name}: its ranks would draw apart.",
                hint="Give a model without dropout.",
            )
