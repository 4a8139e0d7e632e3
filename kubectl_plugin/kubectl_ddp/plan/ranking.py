"""All layouts of a model on a number of GPUs: those that fit, the fastest first, and why the others cannot be had."""

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

Refusal = Callable[[Choice], Violation | None]
"""Why whoever trains would refuse one way; None where they take it."""

_ALIKE: Final = math.log(1.02)
"""Estimates of two steps that lie so close together say nothing about which is shorter."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What training in one way would be like."""

    choice: Choice
    memory: Memory
    traffic: Sequence[Traffic]
    timing: Timing
    fits: bool
    simplicity: tuple[int, ...]
    """Smaller is simpler: with as long a step, a layout with fewer kinds of parallelism is to be had first."""

    @property
    def rank(self) -> tuple[object, ...]:
        """By which outlooks that fit are put in order."""
        return (round(math.log(self.timing.step_seconds) / _ALIKE), *self.simplicity, self.timing.step_seconds)


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A layout that a model cannot have, whatever the memory."""

    layout: Layout
    reason: str


class RejectedLayout(NamedTuple):
    """A layout that fits in no way that goes with what else is said about the job."""

    way: Estimate
    """The fastest that fits."""
    misfit: Violation
    """Why it is refused."""


def takes_all(_: Choice) -> None:
    """The refusal of those who know of nothing that a layout would not go with."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts."""

    shape: Shape
    work: Work
    machine: Machine
    fitting: Sequence[Estimate]
    """The fastest first; each in the way that makes it fastest."""
    too_large: Sequence[Estimate]
    """The nearest miss first; each in the way that takes the least memory."""
    impossible: Sequence[Infeasible]
    refused: Sequence[RejectedLayout]
    """The fastest first."""
    refusal: Refusal
    """By which they were."""


def plan(shape: Shape, work: Work, machine: Machine, refusal: Refusal = takes_all) -> Plan:
    """Look at every layout, and take of each the fastest way that fits and is not refused."""
    fitting: list[Estimate] = []
    too_large: list[Estimate] = []
    impossible: list[Infeasible] = []
    refused: list[RejectedLayout] = []
    for layout in layouts(machine.world, PLANNED):
        if reason := infeasible_reason(layout, shape, work, machine):
            impossible.append(Infeasible(layout, reason))
            continue
        ways = [estimate_choice(shape, work, machine, choice) for choice in choices(layout, work)]
        best = _best([way for way in ways if way.fits], refusal)
        if best is None:
            too_large.append(min(ways, key=lambda way: way.memory.total))
        elif isinstance(best, RejectedLayout):
            refused.append(best)
        else:
            fitting.append(best)
    fitting.sort(key=lambda way: way.rank)
    too_large.sort(key=lambda way: way.memory.total)
    refused.sort(key=lambda each: each.way.rank)
    return Plan(shape, work, machine, fitting, too_large, impossible, refused, refusal)


def _best(ways: Sequence[Estimate], refusal: Refusal) -> Estimate | RejectedLayout | None:
    """The fastest way that is not refused; where all are, the fastest of them; None where there is none."""
    first: RejectedLayout | None = None
    for way in sorted(ways, key=lambda way: way.rank):
        if (misfit := refusal(way.choice)) is None:
            return way
        first = first or RejectedLayout(way, misfit)
    return first


def estimate_choice(shape: Shape, work: Work, machine: Machine, choice: Choice) -> Estimate:
    """What one way would be like."""
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
