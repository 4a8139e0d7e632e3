"""Estimate of a step's duration and of its share of the GPUs' peak, to compare layouts.

A GPU computes at ``efficiency`` of its peak, including recomputation. Recomputation of cheap parts only involves no
multiplications, so it takes the time of its memory accesses. In a pipeline of ``p`` stages and ``m`` micro-batches,
each GPU idles for ``(p-1)/(m+p-1)`` of the time (GPipe, Huang et al., 2019; 1F1B has the same bubble). Only traffic
that does not overlap with computation takes time:

- ``tp`` traffic is between one matrix and the next, and never overlaps.
- ``shard`` traffic overlaps with computation of equal length. The weights of a pipeline stage are gathered before it
  computes and gradients are reduce-scattered after it, without overlap.
- ``replicate`` traffic overlaps with the backward pass of the last micro-batch, two thirds of its computation.
- ``pp`` traffic causes waits only while the pipeline fills and drains.

MFU is the operations that the model needs (:meth:`~kubectl_ddp.plan.shape.Shape.flops_per_token`) over the peak of all
GPUs in that time ("PaLM", Chowdhery et al., 2022). HFU includes recomputed operations
(:meth:`~kubectl_ddp.plan.shape.Shape.recompute_flops_per_token`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.plan.activations import stream_bytes
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.traffic import Traffic
from kubectl_ddp.plan.work import Precision, Work

_BACKWARD: Final = 2 / 3
BUBBLE: Final = "bubble"
RECOMPUTATION: Final = "recomputation"
IMBALANCE: Final = "imbalance"


@dataclass(frozen=True, slots=True)
class Timing:
    """Time of one step."""

    step_seconds: float
    lost_seconds: Mapping[str, float]
    """Time lost beyond the model's own operations: ``bubble``, ``recomputation``, ``imbalance``, and dimensions with
    traffic that does not overlap.
    """
    bubble: float
    """Share of the computing time in which a pipeline's GPU idles."""
    mfu: float
    hfu: float
    tokens_per_second: float
    """Total over all GPUs."""


def bubble(stages: int, micro_batches: int) -> float:
    """Return the share of the time in which a stage idles while the pipeline fills and drains.

    >>> bubble(4, 12), bubble(1, 7)
    (0.2, 0.0)
    """
    return (stages - 1) / (micro_batches + stages - 1)


def timing(shape: Shape, work: Work, choice: Choice, machine: Machine, sent: Sequence[Traffic]) -> Timing:
    """Estimate the time of a step."""
    layout = choice.layout
    tokens = work.global_batch * work.sequence
    flops = tokens * shape.flops_per_token(work.sequence)
    peak = machine.gpu.bf16_flops if work.precision is Precision.BF16 else machine.gpu.fp32_flops
    needed = flops / (machine.world * peak * work.efficiency)
    uneven = needed * (_load_imbalance(shape, work, choice) - 1)
    flops_again = _recompute_flops_ratio(shape, work, choice)
    again = (needed + uneven) * flops_again + _cheap_recompute_seconds(shape, work, choice, machine)
    busy = needed + uneven + again
    idle = busy * (layout.pp - 1) / choice.passes
    waits = _waits(choice, busy, sent)
    losses = {BUBBLE: idle, RECOMPUTATION: again, IMBALANCE: uneven, **waits}
    step = busy + idle + sum(waits.values())
    mfu = flops / (step * machine.world * peak)
    return Timing(
        step_seconds=step,
        lost_seconds=losses,
        bubble=bubble(layout.pp, choice.passes),
        mfu=mfu,
        hfu=mfu * (1 + flops_again),
        tokens_per_second=tokens / step,
    )


def _load_imbalance(shape: Shape, work: Work, choice: Choice) -> float:
    """Return the load of the rank with the most samples, in the stage with the most layers, relative to the mean."""
    layout = choice.layout
    samples = -(-work.global_batch // layout.data_size) * layout.data_size / work.global_batch
    return samples * -(-shape.layers // layout.pp) * layout.pp / shape.layers


def _recompute_flops_ratio(shape: Shape, work: Work, choice: Choice) -> float:
    """Return the recomputed operations relative to those that the model needs."""
    if choice.recomputation.is_cheap:
        return 0.0
    blocks = choice.recomputation.blocks(shape.layers) / shape.layers
    return blocks * shape.recompute_flops_per_token(work.sequence) / shape.flops_per_token(work.sequence)


def _cheap_recompute_seconds(shape: Shape, work: Work, choice: Choice, machine: Machine) -> float:
    """Return the seconds of memory accesses for cheap recomputation: two norms, a sum in the stream, the activation."""
    if not choice.recomputation.is_cheap:
        return 0.0
    computed = work.precision.computed
    in_stream = (4 * stream_bytes(work, choice) + 3 * computed) * shape.hidden
    activation = (5 if shape.is_gated else 2) * computed * shape.intermediate_size
    layers = -(-shape.layers // choice.layout.pp)
    rows = choice.passes * choice.micro_batch * work.sequence / choice.layout.tp
    return rows * layers * (in_stream + activation) / machine.gpu.memory_bytes_per_second


def _waits(choice: Choice, busy: float, sent: Sequence[Traffic]) -> dict[str, float]:
    """Return the seconds of traffic that do not overlap with computation, by dimension."""
    seconds: dict[str, float] = {}
    for each in sent:
        seconds[each.dimension] = seconds.get(each.dimension, 0.0) + each.seconds
    layout = choice.layout
    adds_up_meanwhile = layout.pp == 1 and (layout.tp == 1 or layout.shard > 1)
    hidden = {
        "shard": 0.0 if choice.is_gathered_per_stage else busy,
        "replicate": busy * _BACKWARD / choice.passes if adds_up_meanwhile else 0.0,
        "pp": seconds.get("pp", 0.0) * (1 - min(1.0, (choice.layout.pp - 1) / choice.passes)),
    }
    return {name: max(0.0, taken - hidden.get(name, 0.0)) for name, taken in seconds.items()}
