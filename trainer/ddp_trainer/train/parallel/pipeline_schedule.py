"""Schedules of a pipeline by name: in which order a rank computes forward and backward of its micro-batches.

torch's own, from :mod:`torch.distributed.pipelining`. A rank has one stage, or with an interleaved schedule two, which
halves the time that ranks stand idle at the start and the end of a step; zero-bubble ones ("Zero Bubble Pipeline
Parallelism", Qi et al., 2023) put off the gradients of weights and compute them where a rank would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from ddp_trainer.common.enums import PipelineSchedule
from ddp_trainer.common.model_constraints import SCHEDULES, of_micro_batches
from ddp_trainer.train.utils.errors import BadConfig


@dataclass(frozen=True, slots=True)
class Kind:
    """One schedule."""

    of_torch: Callable[..., Any]
    stages_per_rank: int
    turns_back: bool = False
    """The second half of the stages goes back over the ranks, so that the first rank has the last stage, too."""

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Stages of a rank, in order."""
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
KINDS: Final[Mapping[PipelineSchedule, Kind]] = {
    name: Kind(schedule, SCHEDULES[name].stages_per_rank, turns_back=name is PipelineSchedule.ZERO_BUBBLE_V)
    for name, schedule in _OF_TORCH.items()
}
"""Schedules by their names; what each asks of the number of micro-batches is said in
:mod:`ddp_trainer.common.model_constraints`."""


def demand_fit(name: PipelineSchedule, micro_batches: int, ranks: int) -> None:
    """Refuse a number of micro-batches that a schedule cannot do.

    Raises:
        BadConfig: they are too few, or no whole rounds.
    """
    for misfit in of_micro_batches(name, micro_batches, pp=ranks):
        raise BadConfig(misfit.sentence, hint=misfit.help)


def make_schedule(
    kind: Kind, stages: Sequence[PipelineStage], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """A schedule of torch's; gradients are added up over micro-batches and never divided by their number."""
    own = list(stages) if kind.stages_per_rank > 1 else stages[0]
    return kind.of_torch(own, micro_batches, loss_fn=loss, scale_grads=False)
