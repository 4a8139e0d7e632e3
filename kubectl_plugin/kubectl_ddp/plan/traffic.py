"""Bytes that a rank sends in a step, by dimension.

A ring all-gather or reduce-scatter of ``n`` bytes among ``k`` ranks sends ``n·(k-1)/k`` from each rank, an all-reduce
twice that (Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005).

- ``replicate``: one all-reduce of the gradients per step.
- ``shard``: all-gathers of the weights in every forward pass and again in every backward pass ("PyTorch FSDP", Zhao et
  al., 2023), and one reduce-scatter of the gradients in 32 bits per step. A pipeline stage's weights are gathered once
  per step, also in 32 bits.
- ``tp``: two all-gathers and two reduce-scatters of the stream per block and forward pass, and the same in the backward
  pass, which equals four all-reduces (Korthikanti et al., 2022, section 4.2.2).
- ``pp``: the output of a stage per micro-batch, and its gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.parallel_dims import WRITTEN
from kubectl_ddp.plan.activations import stream_bytes
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.memory import Stage, stages
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work

_SINGLE: Final = 4
_PASSES: Final = 2
"""Passes through a block, forward and backward; recomputation adds one."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of exchange."""

    dimension: str
    operation: str
    sent_bytes: float
    """Bytes that each rank sends per step."""
    link_bytes: float
    """Bytes per second of the slowest link in use."""

    @property
    def seconds(self) -> float:
        """Duration per step on that link without other traffic."""
        return self.sent_bytes / self.link_bytes


@dataclass(frozen=True, slots=True)
class _Step:
    """Inputs of the formulas: the way to train, and the stage with the most weights."""

    shape: Shape
    work: Work
    choice: Choice
    machine: Machine
    stage: Stage

    @property
    def stream(self) -> int:
        """Numbers in the stream of one pass."""
        return self.choice.micro_batch * self.work.sequence * self.shape.hidden


def traffic(shape: Shape, work: Work, choice: Choice, machine: Machine) -> list[Traffic]:
    """Return the traffic of a rank in the stage with the most weights, for each dimension larger than 1."""
    stage = max(stages(shape, choice), key=lambda each: each.weights)
    step = _Step(shape, work, choice, machine, stage)
    used = {name: each for name, each in EXCHANGES.items() if getattr(choice.layout, name) > 1}
    return [Traffic(name, *sent) for name, each in used.items() for sent in each.formula(step)]


_Sent = Iterator[tuple[str, float, float]]
"""Operation, bytes and bytes per second, as in :class:`Traffic`."""


def _replicate(step: _Step) -> _Sent:
    layout = step.choice.layout
    sent = 2 * _ring(layout.replicate) * step.stage.weights / layout.shard * _SINGLE
    yield "all-reduce", sent, step.machine.link(layout.replica, layout.replicate)


def _shard(step: _Step) -> _Sent:
    choice, layout, weights = step.choice, step.choice.layout, step.stage.weights
    link, part = step.machine.link(layout.tp, layout.shard), _ring(layout.shard)
    once = part * weights * _SINGLE
    gathered = (
        once if choice.is_gathered_per_stage else 2 * choice.passes * part * weights * step.work.precision.computed
    )
    yield "all-gather", gathered, link
    yield "reduce-scatter", once, link


def _tp(step: _Step) -> _Sent:
    choice, tp, stage = step.choice, step.choice.layout.tp, step.stage
    again = choice.recomputation.blocks(stage.first + stage.layers) - choice.recomputation.blocks(stage.first)
    times = 4 * (_PASSES * stage.layers + again) * choice.passes
    sent = times * _ring(tp) * step.stream * step.work.precision.computed
    yield "all-gather and reduce-scatter", sent, step.machine.link(1, tp)


def _pp(step: _Step) -> _Sent:
    choice, layout = step.choice, step.choice.layout
    sent = 2 * choice.passes * step.stream * stream_bytes(step.work, choice) / layout.tp
    yield "send", sent, step.machine.hop(layout.tp * layout.shard, layout.pp)


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class _Exchange:
    """Traffic between the ranks along a dimension."""

    formula: Callable[[_Step], _Sent]
    loss: str
    """Sentence for a layout whose largest loss is this traffic."""


EXCHANGES: Final[Mapping[str, _Exchange]] = {
    "replicate": _Exchange(_replicate, "Adding up gradients is waited for, {share} of the step."),
    "shard": _Exchange(_shard, "Gathering weights is waited for, {share} of the step."),
    "tp": _Exchange(_tp, "Exchanges within each layer take {share} of the step."),
    "pp": _Exchange(_pp, "What stages hand over is waited for, {share} of the step."),
}
"""Exchanges by dimension. A plan considers only these dimensions, since it has no cost formula for others."""

PLANNED: Final = tuple(name for name in WRITTEN if name in EXCHANGES)
"""Dimensions of a plan, in the order in which layouts are written."""
