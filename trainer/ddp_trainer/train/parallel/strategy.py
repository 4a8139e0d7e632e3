"""Strategies in which every rank holds the whole model, and the protocol of all strategies: the calls of a step.

For each step, :mod:`ddp_trainer.train.step` calls on every rank::

    begin(step)
    for each batch slice of this rank:
        forward(batch), backward(losses, samples)  # each pass except the last one of the step inside no_sync()
        slice_done(slice_index)  # only of a strategy that separates_slices
    reduce(samples of the whole global step)
    ... the vote, after which all ranks commit the step or none does:
    optimizer.step(), unless a guard skips the step
    on_step_end(step, optimizer)

The batch slices of this rank are computed one by one, or merged into a single one
(:attr:`Strategy.merges_slices`, ``--level fast``). A slice has one pass, or several with ``--micro-batch``.

When ``reduce`` returns, ``weight.grad`` must hold the gradient for the optimizer. A rank that has no samples in a step,
or could not fetch them, calls ``reduce`` as well, without any pass before it.

How to add a strategy:

1. Add a member of ``StrategyName`` in ``train/config/option_values.py``.
2. Subclass :class:`Strategy`, and override the calls that differ; :class:`Manual` is the shortest example. Add the
   class to ``_BY_NAME`` of ``factory.py``, and to ``_NEED_PEERS`` if a single rank has nothing to do.
3. Refuse options in ``_conflicts`` of ``train/config/config.py``. ``can_join_next_group`` in
   ``train/loop/run_context.py`` is False for a strategy whose ranks hold different states between steps; override
   ``is_synchronized_after`` too.
4. Run ``make docs``, and add the row to ``docs/strategies.md``. Add the flags to
   ``test_two_ranks_learn_what_plain_ddp_does`` in ``tests/local/train/test_train_strategies.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.loaders.base import BatchSlice
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.utils.dynamo_stub import uncompiled, without_compiler
from ddp_trainer.train.utils.errors import BadConfig, BadTask

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState
    from ddp_trainer.train.optim.optimizer import LossScale


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
class StrategyArguments:
    """Arguments that a strategy is built from."""

    model: nn.Module
    """The model on its device; either the weights are equal on all ranks, or the strategy broadcasts rank 0's."""
    losses: Callable[[nn.Module, Batch], Tensor]
    """:meth:`ddp_trainer.train.data.task.Task.losses`."""
    group: Group
    plan: BatchPlan
    config: Config
    sharded: ShardedState | None = None
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

    separates_slices: ClassVar[bool] = False
    """:meth:`slice_done` takes the gradients of each slice out of ``weight.grad``."""

    merges_slices: ClassVar[bool] = False
    """All samples of this rank in a step are one slice, at every level."""

    def __init__(self, arguments: StrategyArguments) -> None:
        self.model = arguments.model
        """The model whose weights are optimized, evaluated and saved."""
        self._weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self._group = arguments.group
        self._losses = arguments.losses
        self.forward_timer = arguments.forward_timer
        """Context around each forward pass, for measurements on a GPU."""
        backward = ScaledBackward(self._group.world_size if self.averages else 1)
        # Activation checkpointing would import the compiler in the backward pass, as optimizers do.
        self._differentiate = without_compiler(backward) if arguments.config.activation_checkpointing else backward

    def begin(self, step: int) -> None:
        """Prepare a step; gradients are cleared already."""

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which gradients stay on this rank, for every pass of a step except the last."""
        return nullcontext()

    def run_schedule(self, batch_slice: BatchSlice, scale: LossScale | None) -> Tensor:
        """Add the gradients of a slice, and return the sum of its losses, a float64 scalar on the device.

        Only a strategy that :attr:`schedules_passes` has this method.

        Args:
            batch_slice: The slice.
            scale: Loss scale for the backward pass; None in every precision except fp16.
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
        """Take the gradients of a slice out of ``weight.grad``, if this strategy :attr:`separates_slices`."""

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
            factor = torch.tensor(self._ranks / samples, dtype=losses.dtype, device=losses.device)
            self._made, self._gradient = wanted, factor.expand(losses.shape)
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


def send_from_first(tensors: Sequence[Tensor], group: Group) -> None:
    """Overwrite the tensors with those of rank 0, in place.

    Args:
        tensors: Tensors on the device, with the same shapes and dtypes on all ranks.
        group: Process group.
    """
    with group.convert_errors():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), 0)


def average(tensors: Sequence[Tensor], group: Group) -> None:
    """Replace the tensors by their mean over ranks, in place; every rank gets the same bits.

    Args:
        tensors: Float tensors on the device, with the same shapes and dtypes on all ranks.
        group: Process group.
    """
    with group.convert_errors():
        for tensor in tensors:
            dist.all_reduce(tensor.detach())
            tensor.detach().div_(group.world_size)


def buffer_argument(constructor: Callable[..., Any]) -> str:
    """Return the argument of DDP's constructor that, if False, keeps a forward pass from broadcasting buffers.

    Before torch 2.13 it is ``broadcast_buffers``, which keeps the constructor from broadcasting them too.
    """
    is_known = "forward_sync_buffers" in signature(constructor).parameters
    return "forward_sync_buffers" if is_known else "broadcast_buffers"


_BUFFER_ARGUMENT: Final = buffer_argument(DistributedDataParallel)


class Ddp(Strategy):
    """DistributedDataParallel; the default for more than one rank."""

    averages = True

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        if arguments.config.static_graph:
            _require_single_pass(arguments)
        self._exchanged = False
        with self._group.convert_errors(), uncompiled():
            self._ddp = DistributedDataParallel(
                arguments.module(),
                device_ids=[self._group.device] if self._group.device.type == "cuda" else None,
                bucket_cap_mb=arguments.config.bucket_mb,
                find_unused_parameters=arguments.config.find_unused_parameters,
                static_graph=arguments.config.static_graph,
                gradient_as_bucket_view=arguments.config.gradient_as_bucket_view,
                init_sync=not self._group.has_agreed_state,
                # The step synchronizes buffers itself, in all modes: see ddp_trainer.train.exact.buffer_sync.
                **{_BUFFER_ARGUMENT: False},  # type: ignore[arg-type] # a name of a bool argument
            )
        if _BUFFER_ARGUMENT == "broadcast_buffers" and not self._group.has_agreed_state:
            send_from_first([*self.model.buffers()], self._group)
        self._imports_compiler = True
        self._checkpoints_activations = arguments.config.activation_checkpointing

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Start a step in which no gradient has been exchanged."""
        self._exchanged = False

    def no_sync(self) -> AbstractContextManager[None]:
        """Return DDP's ``no_sync()`` context, in which gradients stay on this rank."""
        return self._ddp.no_sync()

    def forward(self, batch: Batch | None) -> Tensor:
        """Return the losses of the samples, computed through DDP; None stands for no samples.

        The ranks agree on DDP's buckets after the first backward pass.
        """
        try:
            if not self._imports_compiler:
                return self._ddp(batch)  # type: ignore[no-any-return] # a Module's call is untyped
            # DDP looks for torch's compiler in its first pass only, activation checkpointing in every pass.
            self._imports_compiler = self._checkpoints_activations
            with uncompiled():
                return self._ddp(batch)  # type: ignore[no-any-return] # as above
        except RuntimeError as err:
            self._group.raise_pass_error(err)

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients; DDP exchanges them during the pass, except in :meth:`no_sync`.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        try:
            super().backward(losses, samples)
        except RuntimeError as err:
            self._group.raise_pass_error(err)
        self._exchanged = self._ddp.require_backward_grad_sync

    def reduce(self, samples: int) -> None:
        """Check that the last backward pass exchanged all gradients.

        A rank that had no such pass exchanges zeros here, because the other ranks wait for it.
        """
        if not self._exchanged:
            self.backward(self.forward(None), samples)
        self._require_all_gradients()

    def _require_all_gradients(self) -> None:
        """Raise BadTask on a missing gradient now: DDP itself reports it one step later, after the incomplete step."""
        finalized = getattr(self._ddp, "_check_reducer_finalized", None)
        if finalized is None:
            return
        try:
            finalized()
        except RuntimeError as err:
            raise BadTask(
                f"Rank {self._group.rank} got no gradient for some weights {self._group.activity}, which DDP needs.",
                hint="Give --find-unused-parameters, or freeze weights that take no part (requires_grad = False).",
            ) from err


def _require_single_pass(arguments: StrategyArguments) -> None:
    """Check what DDP needs for a static graph: exactly one pass on every rank in every step.

    Raises:
        BadConfig: Some rank would have several passes, or none, in some step.
    """
    plan, world = arguments.plan, arguments.group.world_size
    last = plan.samples % plan.global_batch
    if plan.batch_slices != world or arguments.config.micro_batch is not None or 0 < last < world:
        raise BadConfig(
            f"--static-graph needs one pass per rank and step, and there are {plan.batch_slices} batch "
            f"slices for {world} ranks{', cut by --micro-batch' if arguments.config.micro_batch is not None else ''}"
            f"{f', with {last} samples in the last step of an epoch' if last else ''}.",
            hint=f"Start the run with --batch-slices {world} and without --micro-batch, or leave --static-graph out.",
        )


class Single(Strategy):
    """Training in one process.

    It rejects a group of several ranks: each would train a separate model on its part of the data.

    Raises:
        BadConfig: The group has more than one rank.
    """

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        if self._group.world_size > 1:
            raise BadConfig(
                f"--strategy {arguments.config.strategy} trains in one process, and this group has "
                f"{self._group.world_size} ranks.",
                hint="Start one process, or give --strategy ddp.",
            )


WHY_DDP = (
    "nn.DataParallel copies the whole model to every GPU in every pass, drives all GPUs from one Python process, and "
    "cannot leave the machine: DDP, with one process per GPU, is faster even on one machine (--strategy ddp)."
)


class DataParallel(Single):
    """nn.DataParallel, for comparison with DDP. On the CPU, or with one GPU, it runs the plain model."""

    remark = WHY_DDP

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        gpus = torch.cuda.device_count() if self._group.device.type == "cuda" else 0
        self._replicated: nn.Module | None = None
        if gpus > 1:
            with uncompiled():
                self._replicated = nn.DataParallel(arguments.module(), device_ids=list(range(gpus)))

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses of the samples, computed in slices by all GPUs and gathered on the first."""
        if self._replicated is None:
            return super().forward(batch)
        losses: Tensor = self._replicated(batch)
        return losses


class Manual(Strategy):
    """Data parallelism without overlap, to read and to measure the gain of DDP; equal to ``ddp`` up to rounding.

    Replicas stay equal if they start with equal weights and take equal steps. Rank 0 therefore broadcasts its weights
    once, and after the backward passes of each step every gradient is averaged over the ranks. DDP does the same, but
    sends buckets of gradients while the backward pass computes the next.
    """

    averages = True

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        if not self._group.has_agreed_state:
            send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Average every gradient over ranks; a weight without a gradient on this rank contributes zeros."""
        for weight in self._weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        average([weight.grad for weight in self._weights if weight.grad is not None], self._group)


class LocalSgd(Strategy):
    """Local SGD: each rank steps by its own gradients, and ranks average weights and moments every few steps.

    With plain SGD and a synchronization in every step it equals ``ddp`` up to rounding. Otherwise the result depends on
    the number of ranks. Only the commit vote is exchanged in every step. Between two synchronizations no single state
    describes the run: checkpoints, the end of an epoch or of the run, and a requested stop wait for a synchronization.

    Each rank scales its gradients as if all ranks had as many samples as it has. The average over ranks then weights
    every sample equally.

    Source: S. U. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019.
    """

    averages = True

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        self._every = arguments.config.sync_steps
        self._plan = arguments.plan
        self._passes = 0
        send_from_first([*self.model.parameters(), *self.model.buffers()], self._group)

    def begin(self, step: int) -> None:  # noqa: ARG002 - the same for all
        """Reset the count of passes."""
        self._passes = 0

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients of one more pass.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        super().backward(losses, samples)
        self._passes += 1

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - backward has used it
        """Keep the gradients local; a rank without samples steps by zeros, its share of the average."""
        if not self._passes:
            for weight in self._weights:
                weight.grad = torch.zeros_like(weight)

    def on_step_end(self, step: int, optimizer: Optimizer) -> None:
        """Average weights and moments over ranks if a synchronization is due."""
        if self.is_synchronized_after(step + 1):
            average([weight.detach() for weight in self._weights] + _optimizer_moments(optimizer), self._group)

    def is_synchronized_after(self, steps: int) -> bool:
        """Return True after every ``sync_steps`` steps, at the end of an epoch, and at the end of the run."""
        plan = self._plan
        return steps % self._every == 0 or steps % plan.steps_per_epoch == 0 or steps >= plan.total_steps


def _optimizer_moments(optimizer: Optimizer) -> list[Tensor]:
    """Return the optimizer's moments in the same order on all ranks; step counters are equal already."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = [optimizer.state[weight] for weight in weights if weight in optimizer.state]
    tensors = [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]
    return [tensor for tensor in tensors if tensor.dim() and tensor.is_floating_point()]
