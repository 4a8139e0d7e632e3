"""The protocol of a strategy, in the order in which a step calls it.

For each step, on every rank::

    begin(step)
    for each logical shard of this rank that has samples:
        for each pass over the shard (one, or several with --micro-batch):
            with nullcontext() if it is the very last pass of the step else alone():
                losses = forward(batch)
                backward(losses, samples of the whole global step)
        shard_done(shard)
    reduce(samples of the whole global step)
    ... the vote, after which all ranks commit the step or none does:
    optimizer.step(), unless a guard skips the step
    committed(step, optimizer)

When ``reduce`` returns, ``weight.grad`` must hold what the optimizer is to step by. A rank that has no samples in a
step, or could not fetch them, calls ``reduce`` as well, and without any pass before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.comm_wait import CommWaits
from ddp_trainer.train.parallel.loss_module import SampleLosses
from ddp_trainer.train.parallel.scaled_backward import ScaledBackward

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a strategy is made from."""

    model: nn.Module
    """On its device; the same weights on every rank, or rank 0's are sent to all."""
    losses: Callable[[nn.Module, Batch], Tensor]
    """:meth:`ddp_trainer.train.data.task.Task.losses`."""
    group: Group
    plan: BatchPlan
    config: Config
    spread: ShardedState | None = None
    """Of a model that no rank holds whole."""
    example: Callable[[], Batch] | None = None
    """Some samples on the device; of a model that no rank holds whole, whose ranks must make equally many passes."""
    waits: CommWaits = field(default_factory=CommWaits)
    """Told of what this rank waits for, beside what is told anyway."""

    def module(self) -> SampleLosses:
        """The losses as a module that can be wrapped."""
        return SampleLosses(self.model, self.losses)


class Strategy:
    """Base of all strategies, and by itself the one for a single rank: nothing is exchanged."""

    remark: ClassVar[str] = ""
    """What a person who chose it should know."""

    averages: ClassVar[bool] = False
    """Gradients are averaged over ranks where their sum is wanted, so each is made larger by the number of ranks."""

    computes_together: ClassVar[bool] = False
    """In a pass this rank waits for others: one that cannot fetch its samples fails at once, and is lost to them."""

    takes_whole_steps: ClassVar[bool] = False
    """:meth:`whole` is called in place of ``forward`` and ``backward``, once in a step in which there are samples."""

    def __init__(self, parts: Parts) -> None:
        self.model = parts.model
        """Whose weights are optimized, evaluated and saved."""
        self._group = parts.group
        self._losses = parts.losses
        self._differentiate = ScaledBackward(self._group.world_size if self.averages else 1)

    def begin(self, step: int) -> None:
        """A step begins; gradients were forgotten."""

    def alone(self) -> AbstractContextManager[None]:
        """Around every pass of a step but the last one: keep gradients on this rank."""
        return nullcontext()

    def forward(self, batch: Batch) -> Tensor:
        """Losses of the samples, one each."""
        return self._losses(self.model, batch)

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of ``losses.sum() / samples``, where ``samples`` are those of the whole global step."""
        self._differentiate(losses, samples)

    def whole(self, batch: Batch, here: int, samples: int, scaled: Callable[[Tensor], Tensor]) -> Tensor:
        """Forward and backward of ``here`` samples, all that this rank has of the step; the sum of their losses.

        What is differentiated is ``scaled(losses)``. Only of a strategy that :attr:`takes_whole_steps`.
        """
        raise NotImplementedError

    def shard_done(self, shard: int) -> None:
        """All passes over a logical shard are done; ``weight.grad`` holds it and, unless taken out, those before."""

    def reduce(self, samples: int) -> None:
        """Make ``weight.grad`` what the optimizer steps by; every rank calls it in every step."""

    def loss_for_vote(self, own: Tensor) -> Tensor:
        """What this rank adds to the vote, where ``own`` is the sum of its samples' losses; after ``reduce``."""
        return own

    def reassign(self, shards: Sequence[range]) -> None:
        """Take over the logical shards of every rank, in rank order, that hold from the next step on. No collective."""

    def committed(self, step: int, optimizer: Optimizer) -> None:
        """All ranks committed the step, and the optimizer moved the weights unless a guard skipped it."""

    def is_synchronised(self, steps: int) -> bool:  # noqa: ARG002 - for those that are not always
        """Whether all ranks hold the same state after so many committed steps.

        Only then may the run save, evaluate or stop. A function of the number of steps alone, so that all ranks, and
        a run that was restarted, answer the same. True after the last step of an epoch, and of the run.
        """
        return True
