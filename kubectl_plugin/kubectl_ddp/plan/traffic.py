"""What a rank sends in a step, by the dimension that it is for.

A ring's all-gather or reduce-scatter of ``n`` bytes among ``k`` ranks sends ``n·(k-1)/k`` from each, an all-reduce
twice that (Thakur et al., "Optimization of Collective Communication Operations in MPICH", 2005).

- ``replicate``: one all-reduce of the gradients per step.
- ``shard``: all-gathers of the weights in every forward and, since they were dropped, every backward pass ("PyTorch
  FSDP", Zhao et al., 2023), and a reduce-scatter of the gradients in 32 bits, once per step. Of a pipeline's stage
  weights are gathered once per step, in 32 bits too.
- ``tp``: per block and pass two all-gathers and two reduce-scatters of the stream forward, and as many backward, which
  is what four all-reduces send (Korthikanti et al., 2022, section 4.2.2).
- ``pp``: what a stage hands to the next per micro-batch, and its gradient back.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.plan.activations import stream_bytes
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.memory import stages
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work

_SINGLE: Final = 4
_PASSES: Final = 2
"""Through a block, forth and back; one more where activations are computed again."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """One kind of exchange."""

    dimension: str
    operation: str
    sent_bytes: float
    """From each rank, per step."""
    link_bytes: float
    """Per second, of the slowest link on the way."""

    @property
    def seconds(self) -> float:
        """On that link, per step, were it alone."""
        return self.sent_bytes / self.link_bytes


def traffic(shape: Shape, work: Work, choice: Choice, machine: Machine) -> list[Traffic]:
    """What the rank of the stage with most weights sends, for each dimension that is more than 1."""
    return list(_traffic(shape, work, choice, machine))


def _traffic(shape: Shape, work: Work, choice: Choice, machine: Machine) -> Iterator[Traffic]:
    layout, passes = choice.layout, choice.passes
    stage = max(stages(shape, choice), key=lambda each: each.weights)
    rows = choice.micro_batch * work.sequence
    if layout.replicate > 1:
        link = machine.link(layout.replica, layout.replicate)
        sent = 2 * _ring(layout.replicate) * stage.weights / layout.shard * _SINGLE
        yield Traffic("replicate", "all-reduce", sent, link)
    if layout.shard > 1:
        link, part = machine.link(layout.tp, layout.shard), _ring(layout.shard)
        once = part * stage.weights * _SINGLE
        gathered = once if choice.gathers_stages else 2 * passes * part * stage.weights * work.precision.computed
        yield Traffic("shard", "all-gather", gathered, link)
        yield Traffic("shard", "reduce-scatter", once, link)
    if layout.tp > 1:
        again = choice.recomputation.blocks(stage.first + stage.layers) - choice.recomputation.blocks(stage.first)
        times = 4 * (_PASSES * stage.layers + again) * passes
        sent = times * _ring(layout.tp) * rows * shape.hidden * work.precision.computed
        yield Traffic("tp", "all-gather and reduce-scatter", sent, machine.link(1, layout.tp))
    if layout.pp > 1:
        sent = 2 * passes * rows * shape.hidden * stream_bytes(work, choice) / layout.tp
        yield Traffic("pp", "send", sent, machine.hop(layout.tp * layout.shard, layout.pp))


def _ring(ranks: int) -> float:
    return (ranks - 1) / ranks
