"""Pipeline schedules by name: the order in which a rank computes forward and backward of its micro-batches.

The schedules are those of :mod:`torch.distributed.pipelining`. A rank has one stage, or two with an interleaved
schedule, which halves the idle time at the start and the end of a step. Zero-bubble schedules postpone the gradients of
weights and compute them while a rank would otherwise wait.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from ddp_trainer.common.trainer_options import SCHEDULES, PipelineSchedule, of_micro_batches
from ddp_trainer.train.utils.errors import BadConfig


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """Kind of a pipeline schedule: its class in torch, and how stages are placed on ranks."""

    of_torch: Callable[..., Any]
    stages_per_rank: int
    turns_back: bool = False
    """Stages are placed in a V: the second half is in reverse order of ranks. The first rank has the last stage."""

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Return the numbers of a rank's stages, in ascending order."""
        if self.turns_back:
            return rank, 2 * ranks - 1 - rank
        return tuple(range(rank, ranks * self.stages_per_rank, ranks))


_OF_TORCH: Final[Mapping[PipelineSchedule, Callable[..., Any]]] = {
    PipelineSchedule.GPIPE: pipelining.ScheduleGPipe,
    PipelineSchedule.ONE_F_ONE_B: pipelining.Schedule1F1B,
    PipelineSchedule.INTERLEAVED: pipelining.ScheduleInterleaved1F1B,
    PipelineSchedule.ZERO_BUBBLE: pipelining.ScheduleInterleavedZeroBubble,
    PipelineSchedule.ZERO_BUBBLE_V: pipelining.ScheduleZBVZeroBubble,
}
KINDS: Final[Mapping[PipelineSchedule, ScheduleKind]] = {
    name: ScheduleKind(schedule, SCHEDULES[name].stages_per_rank, turns_back=name is PipelineSchedule.ZERO_BUBBLE_V)
    for name, schedule in _OF_TORCH.items()
}
"""Schedules by name; :mod:`ddp_trainer.common.trainer_options` has their limits on the number of micro-batches."""


def check_micro_batches(name: PipelineSchedule, micro_batches: int, ranks: int) -> None:
    """Check that a schedule supports this number of micro-batches.

    Args:
        name: The schedule.
        micro_batches: Number of micro-batches of one step on one data rank.
        ranks: Number of ranks of the pipeline.

    Raises:
        BadConfig: There are too few micro-batches, or they do not form whole rounds.
    """
    for misfit in of_micro_batches(name, micro_batches, pp=ranks):
        raise BadConfig(misfit.message, hint=misfit.help)


def make_schedule(
    kind: ScheduleKind, stages: Sequence[PipelineStage], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """Return torch's schedule; it sums gradients over micro-batches and does not divide by their number.

    Args:
        kind: Kind of schedule.
        stages: Stages of this rank.
        micro_batches: Number of micro-batches of one step.
        loss: Returns a float scalar from the last stage's output and the target of a micro-batch.
    """
    own = list(stages) if kind.stages_per_rank > 1 else stages[0]
    return kind.of_torch(own, micro_batches, loss_fn=loss, scale_grads=False)
