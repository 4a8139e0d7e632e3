"""Schedules of a pipeline by name: in which order a rank computes forward and backward of its micro-batches.

torch's own, from :mod:`torch.distributed.pipelining`. A rank has one stage, or with an interleaved schedule two, which
halves the time that ranks stand idle at the start and the end of a step; zero-bubble ones ("Zero Bubble Pipeline
Parallelism", Qi et al., 2023) put off the gradients of weights and compute them where a rank would wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from ddp_trainer.train.errors import BadConfig
from ddp_trainer.train.options import PipelineSchedule


@dataclass(frozen=True, slots=True)
class Kind:
    """One schedule."""

    of_torch: Callable[..., Any]
    stages_per_rank: int = 1
    turns_back: bool = False
    """The second half of the stages goes back over the ranks, so that the first rank has the last stage, too."""
    in_rounds: bool = False
    """Micro-batches come in rounds of as many as there are ranks."""
    fills: bool = False
    """Needs as many micro-batches as there are stages."""

    def stages_of(self, rank: int, ranks: int) -> tuple[int, ...]:
        """Stages of a rank, in order."""
        if self.turns_back:
            return rank, 2 * ranks - 1 - rank
        return tuple(range(rank, ranks * self.stages_per_rank, ranks))


KINDS: Final = {
    PipelineSchedule.GPIPE: Kind(pipelining.ScheduleGPipe),
    PipelineSchedule.ONE_F_ONE_B: Kind(pipelining.Schedule1F1B, fills=True),
    PipelineSchedule.INTERLEAVED: Kind(pipelining.ScheduleInterleaved1F1B, stages_per_rank=2, in_rounds=True),
    PipelineSchedule.ZERO_BUBBLE: Kind(pipelining.ScheduleInterleavedZeroBubble, stages_per_rank=2, in_rounds=True),
    PipelineSchedule.ZERO_BUBBLE_V: Kind(pipelining.ScheduleZBVZeroBubble, stages_per_rank=2, turns_back=True),
}


def micro_batch_size(samples: int, most: int | None, ranks: int) -> int:
    """Samples of a micro-batch: what was asked, else a fourth of what each rank would have by itself.

    >>> micro_batch_size(64, None, 2), micro_batch_size(64, 4, 2), micro_batch_size(3, None, 2)
    (8, 4, 1)
    """
    return min(most, samples) if most is not None else max(1, samples // (4 * ranks))


def demand_fit(kind: Kind, name: PipelineSchedule, micro_batches: int, ranks: int) -> None:
    """Refuse a number of micro-batches that a schedule cannot do.

    Raises:
        BadConfig: they are too few, or no whole rounds.
    """
    if kind.fills and micro_batches < ranks:
        raise BadConfig(
            f"--pipeline-schedule {name} needs at least {ranks} micro-batches for {ranks} stages, and a step has "
            f"{micro_batches}.",
            hint="Give a smaller --micro-batch, a larger --global-batch, or --pipeline-schedule gpipe.",
        )
    if kind.in_rounds and micro_batches > ranks and micro_batches % (micro_batches // ranks):
        raise BadConfig(
            f"--pipeline-schedule {name} takes micro-batches in equal rounds over {ranks} ranks, and a step has "
            f"{micro_batches}.",
            hint=f"Give a --micro-batch that makes them a multiple of {ranks}.",
        )


def make_schedule(
    kind: Kind, stages: Sequence[PipelineStage], micro_batches: int, loss: Callable[[Tensor, Tensor], Tensor]
) -> Any:
    """A schedule of torch's; gradients are added up over micro-batches and never divided by their number."""
    own = list(stages) if kind.stages_per_rank > 1 else stages[0]
    return kind.of_torch(own, micro_batches, loss_fn=loss, scale_grads=False)
