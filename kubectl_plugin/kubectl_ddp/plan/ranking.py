"""All layouts of a model on a number of GPUs: those that fit, the fastest first, and why the others do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ddp_trainer.layout import Layout
from kubectl_ddp.plan.choice import Choice, choices, layouts, obstacle
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.memory import Memory, memory
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.timing import Timing, timing
from kubectl_ddp.plan.traffic import Traffic, traffic
from kubectl_ddp.plan.work import Work

_ALIKE: Final = math.log(1.02)
"""Estimates of two steps that lie so close together say nothing about which is shorter."""


@dataclass(frozen=True, slots=True)
class Outlook:
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
class Impossible:
    """A layout that a model cannot have, whatever the memory."""

    layout: Layout
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts."""

    shape: Shape
    work: Work
    machine: Machine
    fitting: Sequence[Outlook]
    """The fastest first; each in the way that makes it fastest."""
    too_large: Sequence[Outlook]
    """The nearest miss first; each in the way that takes the least memory."""
    impossible: Sequence[Impossible]


def plan(shape: Shape, work: Work, machine: Machine) -> Plan:
    """Look at every layout."""
    fitting: list[Outlook] = []
    too_large: list[Outlook] = []
    impossible: list[Impossible] = []
    for layout in layouts(machine.world):
        if reason := obstacle(layout, shape, work, machine):
            impossible.append(Impossible(layout, reason))
            continue
        ways = [outlook(shape, work, machine, choice) for choice in choices(layout, work)]
        fit = [way for way in ways if way.fits]
        if fit:
            fitting.append(min(fit, key=lambda way: way.rank))
        else:
            too_large.append(min(ways, key=lambda way: way.memory.total))
    fitting.sort(key=lambda way: way.rank)
    too_large.sort(key=lambda way: way.memory.total)
    return Plan(shape, work, machine, fitting, too_large, impossible)


def outlook(shape: Shape, work: Work, machine: Machine, choice: Choice) -> Outlook:
    """What one way would be like."""
    taken = memory(shape, work, choice)
    sent = traffic(shape, work, choice, machine)
    layout = choice.layout
    dimensions = (layout.pp, layout.tp, layout.shard, layout.replicate)
    return Outlook(
        choice=choice,
        memory=taken,
        traffic=sent,
        timing=timing(shape, work, choice, machine, sent),
        fits=taken.total <= machine.usable_bytes,
        simplicity=(
            sum(size > 1 for size in dimensions),
            *dimensions,
            len(choice.recomputation.flags),
            -choice.micro_batch,
        ),
    )
