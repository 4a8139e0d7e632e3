"""Choice of the best layout; if none fits, an error with the nearest miss and a fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.errors import PreflightFailed, UsageError
from kubectl_ddp.plan.formatting import count, format_bytes
from kubectl_ddp.plan.job_args import MICRO_BATCH
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.ranking import Plan, plan
from kubectl_ddp.plan.recomputation import ALL, FLAG, NOTHING, WHAT
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work

_MOST: Final = 2048
"""Maximum number of GPUs up to which more nodes are tried."""


def best(shape: Shape, work: Work, machine: Machine) -> Layout:
    """Return the best layout.

    Raises:
        PreflightFailed: If no layout fits.
    """
    found = plan(shape, work, machine)
    require_feasible_plan(found)
    return found.fitting[0].choice.layout


def require_feasible_plan(found: Plan) -> None:
    """Raise an error if a plan has no layout.

    Raises:
        UsageError: If all layouts that fit are refused.
        PreflightFailed: If no layout fits; the error contains the nearest miss and a fix.
    """
    if found.fitting:
        return
    if found.refused:
        violation = found.refused[0].violation
        raise UsageError(f"{violation.message} No layout fits that goes with it.", hint=violation.help)
    whose = f"a model of {count(found.shape.parameters)} parameters on {found.machine.describe()}"
    if not found.too_large:
        raise PreflightFailed(f"There is no layout for {whose}: {found.impossible[0].reason}", hint=_fix_hint(found))
    miss = found.too_large[0]
    raise PreflightFailed(
        f"No layout fits {whose}: the nearest, {miss.choice.layout}, takes {format_bytes(miss.memory.total)} per GPU, "
        f"the most of it for {miss.memory.largest}, and {format_bytes(found.machine.available_bytes)} can be used.",
        hint=_fix_hint(found),
    )


def _fix_hint(found: Plan) -> str:
    """Return the smallest change that helps: remove flags, or use more nodes."""
    work, machine = found.work, found.machine
    for change, free in _relaxed_variants(work):
        if plan(found.shape, free, machine, found.check_choice).fitting:
            return f"It fits {change}."
    nodes = 2 * machine.nodes
    while nodes * machine.per_node <= _MOST:
        more = plan(found.shape, work, replace(machine, nodes=nodes), found.check_choice).fitting
        if more:
            return f"It fits on {nodes} such nodes (--nnodes {nodes}), as {more[0].choice.layout}."
        nodes *= 2
    return "Take GPUs with more memory, a smaller model, shorter samples or another --global-batch."


def _relaxed_variants(work: Work) -> Iterator[tuple[str, Work]]:
    """Yield the step with fewer settings, and the description of the change: single changes first, then both."""
    passes, again = work.micro_batch, work.recomputation
    less = f"without {MICRO_BATCH}"
    more = f"with {FLAG}" if again == NOTHING else f"without {FLAG if again == ALL else WHAT}"
    if passes is not None:
        yield less, replace(work, micro_batch=None)
    if again is not None:
        yield more, replace(work, recomputation=None)
    if passes is not None and again is not None:
        yield f"{less} and {more}", replace(work, micro_batch=None, recomputation=None)
