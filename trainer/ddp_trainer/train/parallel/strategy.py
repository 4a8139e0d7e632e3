"""Protocol of a parallel strategy: the calls of a step, in order.

For each step, :mod:`ddp_trainer.train.step` calls on every rank::

    begin(step)
    for each batch slice of this rank:
        forward(batch), backward(losses, samples)  # each pass except the last one of the step inside no_sync()
        slice_done(slice_index)
    reduce(samples of the whole global step)
    ... the vote, after which all ranks commit the step or none does:
    optimizer.step(), unless a guard skips the step
    on_step_end(step, optimizer)

The batch slices of this rank are computed one by one, or merged into a single one
(:attr:`Strategy.takes_whole_steps`, ``--level fast``). A slice has one pass, or several with ``--micro-batch``.

When ``reduce`` returns, ``weight.grad`` must hold the gradient for the optimizer. A rank that has no samples in a step,
or could not fetch them, calls ``reduce`` as well, without any pass before it.

How to add a strategy:

1. Add a member of ``StrategyName`` in ``train/config/option_values.py``.
2. Subclass :class:`Strategy` in a module here, and override the calls that differ; ``manual_ddp.py`` is the shortest
   example. Add the class to ``_BY_NAME`` of ``factory.py``, and to ``_NEED_PEERS`` if a single rank has nothing to
   do.
3. Refuse options in ``_conflicts`` of ``train/config/config.py``. ``can_join_next_group`` in
   ``train/loop/run_context.py`` is False for a strategy whose ranks hold different states between steps; override
   ``synchronize_with_timeout`` too.
4. Run ``make docs``, and add the row to ``docs/strategies.md``. Add the flags to
   ``test_two_ranks_learn_what_plain_ddp_does`` in ``tests/local/train/test_train_strategies.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.loaders.base import BatchSlice
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.comm_wait import CommWaits
from ddp_trainer.train.utils.dynamo_stub import without_compiler

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


class SampleLosses(nn.Module):
    """Module that returns the losses of some samples, shape ``(n,)``, one loss per sample.

    For no samples it returns a zero that depends on every weight. DDP expects a gradient of every weight in each
    backward pass, so a rank without samples contributes zeros.
    """

    def __init__(self, model: nn.Module, losses: Callable[[nn.Module, Batch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._losses = losses

    def forward(self, batch: Batch | None) -> Tensor:
        """Return the losses of the samples, or a zero for None.

        Args:
            batch: Samples on the device, as the task returns them.

        Returns:
            Losses, float ``(n,)``; for None a float scalar.
        """
        if batch is None:
            zeros = [(weight * 0).sum() for weight in self.model.parameters() if weight.requires_grad]
            return torch.stack(zeros).sum()
        return self._losses(self.model, batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Components that a strategy is built from."""

    model: nn.Module
    """The model on its device; either the weights are equal on all ranks, or the strategy broadcasts rank 0's."""
    losses: Callable[[nn.Module, Batch], Tensor]
    """:meth:`ddp_trainer.train.data.task.Task.losses`."""
    group: Group
    plan: BatchPlan
    config: Config
    spread: ShardedState | None = None
    """The distributed state, if no rank holds the whole model; else None."""
    example: Callable[[], Batch] | None = None
    """Returns some samples on the device, for empty passes; None if every rank holds the whole model."""
    waits: CommWaits = field(default_factory=CommWaits)
    """Timer of this rank's waits for its peers."""
    forward_timer: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Context around each forward pass, for measurements on a GPU."""

    def module(self) -> SampleLosses:
        """Return the model and its losses as one module, for wrappers such as DDP."""
        return SampleLosses(self.model, self.losses)


class Strategy:
    """Base of all strategies; without a subclass, the strategy of a single rank, without communication."""

    remark: ClassVar[str] = ""
    """Note printed to the user who chose this strategy; empty if there is none."""

    averages: ClassVar[bool] = False
    """Gradients are averaged over ranks although their sum is needed: each is multiplied by the number of ranks."""

    computes_together: bool = False
    """Ranks wait for each other within a pass.

    A rank that cannot fetch its samples raises immediately instead of after the vote. Its peers lose it.
    """

    schedules_passes: ClassVar[bool] = False
    """:meth:`run_schedule` interleaves the passes of a slice, in place of :meth:`forward` and :meth:`backward`."""

    takes_whole_steps: ClassVar[bool] = False
    """All samples of this rank in a step are one slice, at every level."""

    def __init__(self, parts: Parts) -> None:
        self.model = parts.model
        """The model whose weights are optimized, evaluated and saved."""
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._group = parts.group
        self._losses = parts.losses
        self.forward_timer = parts.forward_timer
        """Context around each forward pass, for measurements on a GPU."""
        backward = ScaledBackward(self._group.world_size if self.averages else 1)
        # Activation checkpointing would import the compiler in the backward pass, as optimizers do.
        self._differentiate = without_compiler(backward) if parts.config.activation_checkpointing else backward

    def begin(self, step: int) -> None:
        """Prepare a step; gradients are cleared already."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which gradients stay on this rank, for every pass of a step except the last."""
        return nullcontext()

    def run_schedule(self, batch_slice: BatchSlice, scaled: Callable[[Tensor], Tensor]) -> Tensor:
        """Add the gradients of a slice, and return the sum of its losses, a float64 scalar on the device.

        Only a strategy that :attr:`schedules_passes` has this method.

        Args:
            batch_slice: The slice.
            scaled: Scales the losses for the backward pass.
        """
        raise NotImplementedError

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses of the samples, shape ``(n,)``.

        Args:
            batch: Samples on the device, as the task returns them.
        """
        return self._losses(self.model, batch)

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of ``losses.sum() / samples`` to the weights.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        self._differentiate(losses, samples)

    def slice_done(self, slice_index: int) -> None:
        """Finish a batch slice: ``weight.grad`` holds the sum over this and, unless taken out, the earlier slices."""

    def reduce(self, samples: int) -> None:
        """Make ``weight.grad`` the gradient for the optimizer; every rank calls it in every step."""

    def reported_loss(self, own: Tensor) -> Tensor:
        """Return the loss that this rank adds to the vote; called after ``reduce``.

        Args:
            own: Sum of the losses of this rank's samples, a float64 scalar on the device.
        """
        return own

    def assign_slices(self, batch_slices: Sequence[range]) -> None:
        """Set the batch slices of all ranks, in rank order, from the next step on; must not communicate."""

    def on_step_end(self, step: int, optimizer: Optimizer) -> None:
        """React to a committed step; the optimizer has moved the weights unless a guard skipped the step."""

    def is_synchronized_after(self, steps: int) -> bool:  # noqa: ARG002 - for strategies that are not always synchronized
        """Return True if all ranks hold the same state after ``steps`` committed steps.

        Only then can the run save, evaluate or stop. The result depends only on the number of steps, so all ranks and
        a restarted run get the same one. It is True after the last step of an epoch and of the run.
        """
        return True


class ScaledBackward:
    """Callable that adds the gradients of ``losses.sum() / samples`` to the weights.

    This rank has only some of the samples of the step. The pass starts with the weight of each loss in the mean as its
    gradient, one number for all losses. Sum and division as operations on the losses would join the graph and cost
    10 us more in every pass.
    """

    def __init__(self, averaged_over: int = 1) -> None:
        """Prepare the pass.

        Args:
            averaged_over: Number of ranks over which gradients are averaged later. The gradients are multiplied by
                it, so that the average equals the sum. 1 if gradients are summed.
        """
        self._ranks = averaged_over
        self._run = _engine()
        self._made: tuple[object, ...] = ()
        self._gradient = torch.empty(0)

    def __call__(self, losses: Tensor, samples: int) -> None:
        """Run the backward pass.

        Args:
            losses: Losses of this pass, one per sample.
            samples: Number of samples of the whole global step.
        """
        if self._run is None:
            torch.autograd.backward(losses.sum() * (self._ranks / samples))
            return
        wanted = samples, losses.shape, losses.dtype
        if wanted != self._made:
            each = torch.tensor(self._ranks / samples, dtype=losses.dtype, device=losses.device)
            self._made, self._gradient = wanted, each.expand(losses.shape)
        self._run(losses, self._gradient)


@lru_cache(maxsize=1)
def _engine() -> Callable[[Tensor, Tensor], None] | None:
    """Return the function behind :func:`torch.autograd.backward`; None if this version of torch has no such function.

    The public function accepts gradients as well, but it compares shapes symbolically and therefore imports sympy.
    """
    try:
        run: Any = torch.autograd.graph._engine_run_backward  # noqa: SLF001 - tested below

        def backward(losses: Tensor, gradients: Tensor) -> None:
            run((losses,), (gradients,), False, False, (), allow_unreachable=True, accumulate_grad=True)

        weight = torch.ones(2, requires_grad=True)
        backward(weight * 3, torch.full((2,), 0.5))
        tried = weight.grad
    except (AttributeError, TypeError, RuntimeError):
        return None
    return backward if tried is not None and tried.tolist() == [1.5, 1.5] else None
