"""Selection of the timer for communication waits.

:func:`measure_waits` chooses by layout and device how the time that a rank waits for its peers is measured. The timers
are in :mod:`ddp_trainer.train.observability.step_timer`.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.time_classes import Wait
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import CommWaits, StepTimer, StreamWaits


def measure_waits(
    model: nn.Module, layout: Layout, group: Group, phases: StepTimer, recorder: RankRecorder
) -> CommWaits:
    """Start to measure how long this rank waits for its peers in each step, and return the timer.

    Args:
        model: The model, already cut by ``layout``.
        layout: The parallel layout of the group.
        group: The group of the ranks.
        phases: The timer of the phases of a step.
        recorder: The recorder of the metrics.
    """
    is_device = group.device.type != "cpu"
    kinds = () if is_device and layout.pp == 1 else possible_waits(layout)
    if not kinds:
        phases.expect(())
        return CommWaits()
    recorder.record_wait(dict.fromkeys(kinds, 0.0))
    if is_device:
        marked = StreamWaits(phases)
        phases.expect(kinds, marked.known)
        return marked
    phases.expect(kinds)
    waits = CommWaits(phases)
    if layout.shard > 1 and layout.pp == 1:  # a pipeline measures its own gathers and reductions
        from ddp_trainer.train.parallel.fully_shard import time_collectives  # noqa: PLC0415 - imports fully_shard

        time_collectives(model, waits)
    return waits


def possible_waits(layout: Layout) -> Sequence[Wait]:
    """Return the kinds of waits that can occur in this layout.

    >>> [str(wait) for wait in possible_waits(Layout(replicate=2, shard=2, pp=2))], possible_waits(Layout(tp=2, pp=2))
    (['all_gather', 'reduce_scatter', 'stage'], (<Wait.STAGE: 'stage'>,))
    """
    of_pieces = (Wait.ALL_GATHER, Wait.REDUCE_SCATTER) if layout.shard > 1 else ()
    return (*of_pieces, Wait.STAGE) if layout.pp > 1 else of_pieces
