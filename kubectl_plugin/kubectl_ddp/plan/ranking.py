"""Plan of a model on a number of GPUs: fitting layouts, fastest first, and reasons against the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ddp_trainer.common.model_constraints import Violation
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.plan.choice import Choice, choices, infeasible_reason, layouts
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.memory import Memory, memory
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.timing import Timing, timing
from kubectl_ddp.plan.traffic import PLANNED, Traffic, traffic
from kubectl_ddp.plan.work import Work

ChoiceCheck = Callable[[Choice], Violation | None]
"""Function that returns the reason why the trainer refuses a way to train, or None."""

_ALIKE: Final = math.log(1.02)
"""Two step time estimates within this logarithmic distance count as equal."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated memory, traffic and time of one way to train."""

    choice: Choice
    memory: Memory
    traffic: Sequence[Traffic]
    timing: Timing
    fits: bool
    simplicity: tuple[int, ...]
    """Sort key for simplicity, smaller is simpler; at equal step time, fewer kinds of parallelism come first."""

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key of fitting estimates."""
        return (round(math.log(self.timing.step_seconds) / _ALIKE), *self.simplicity, self.timing.step_seconds)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A layout that is impossible regardless of memory."""

    layout: Layout
    reason: str


class RejectedLayout(NamedTuple):
    """A layout that fits in memory but conflicts with the job's options."""

    way: Estimate
    """Fastest estimate that fits."""
    violation: Violation
    """Reason why the trainer refuses it."""


def takes_all(_: Choice) -> None:
    """Refuse nothing; the default of :func:`plan`."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts by outcome."""

    shape: Shape
    work: Work
    machine: Machine
    fitting: Sequence[Estimate]
    """Layouts that fit, fastest first, each in its fastest way."""
    too_large: Sequence[Estimate]
    """Layouts that need too much memory, nearest miss first, each in the way with the least memory."""
    impossible: Sequence[Infeasible]
    refused: Sequence[RejectedLayout]
    """Layouts refused by the job's options, fastest first."""
    check_choice: ChoiceCheck
    """Function that refused them."""


def plan(shape: Shape, work: Work, machine: Machine, check_choice: ChoiceCheck = takes_all) -> Plan:
    """Evaluate every layout, and select for each the fastest way that fits and is not refused."""
    fitting: list[Estimate] = []
    too_large: list[Estimate] = []
    impossible: list[Infeasible] = []
    refused: list[RejectedLayout] = []
    for layout in layouts(machine.world, PLANNED):
        if reason := infeasible_reason(layout, shape, work, machine):
            impossible.append(Infeasible(layout, reason))
            continue
        ways = [estimate_choice(shape, work, machine, choice) for choice in choices(layout, work)]
        best = _best([way for way in ways if way.fits], check_choice)
        if best is None:
            too_large.append(min(ways, key=lambda way: way.memory.total))
        elif isinstance(best, RejectedLayout):
            refused.append(best)
        else:
            fitting.append(best)
    fitting.sort(key=lambda way: way.rank)
    too_large.sort(key=lambda way: way.memory.total)
    refused.sort(key=lambda each: each.way.rank)
    return Plan(shape, work, machine, fitting, too_large, impossible, refused, check_choice)


def _best(ways: Sequence[Estimate], check_choice: ChoiceCheck) -> Estimate | RejectedLayout | None:
    """Return the fastest way that is not refused; else the fastest refused one; None without any."""
    first: RejectedLayout | None = None
    for way in sorted(ways, key=lambda way: way.rank):
        if (violation := check_choice(way.choice)) is None:
            return way
        first = first or RejectedLayout(way, violation)
    return first


def estimate_choice(shape: Shape, work: Work, machine: Machine, choice: Choice) -> Estimate:
    """Estimate one way to train."""
    taken = memory(shape, work, choice)
    sent = traffic(shape, work, choice, machine)
    layout = choice.layout
    dimensions = [getattr(layout, name) for name in reversed(PLANNED)]
    return Estimate(
        choice=choice,
        memory=taken,
        traffic=sent,
        timing=timing(shape, work, choice, machine, sent),
        fits=taken.total <= machine.available_bytes,
        simplicity=(
            sum(size > 1 for size in dimensions),
            *dimensions,
            len(choice.recomputation.flags),
            -choice.micro_batch,
        ),
    )
