"""Strategy of ``--parallel shard=N``: fully sharded data parallelism with torch's ``fully_shard``.

:func:`shard` cuts a model block by block, before its optimizer is built. :class:`Fsdp` trains it. The ranks gather
weights and reduce gradients within passes, so every rank makes as many passes as the rank that needs most.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.data.batch_plan import BatchPlan, cut, shares
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.grad_allreduce import ALL_GATHER, REDUCE_SCATTER
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.parallel.strategy import Strategy, StrategyArguments
from ddp_trainer.train.parallel.tensor_parallel import full_losses, in_slices
from ddp_trainer.train.transforms.blocks import blocks, named_blocks
from ddp_trainer.train.transforms.precision import AUTOCAST_TYPES
from ddp_trainer.train.utils.errors import BadConfig


def shard(model: nn.Module, mesh: Mesh, config: Config, group: Group) -> None:
    """Shard the model in place over ``shard``, with one copy per rank of ``replicate``.

    Slices of tensor parallelism are sharded again, each slice separately.

    Args:
        model: The model; it may be on torch's meta device.
        mesh: The mesh of the ranks.
        config: The configuration, with the ``fsdp_*`` options and the precision.
        group: The group of the ranks.

    Raises:
        BadConfig: The model has no block of a named class, or CPU offload is requested on the CPU.
    """
    found = named_blocks(model, config.fsdp_blocks) if config.fsdp_blocks else blocks(model)
    if config.fsdp_offload and group.device.type == "cpu":
        raise BadConfig(
            "--fsdp-offload keeps pieces in the CPU's memory, and this run computes on the CPU.",
            hint="Leave it out.",
        )
    computed_in = AUTOCAST_TYPES.get(config.precision)
    devices = mesh.along("replicate", "shard")
    offload = CPUOffloadPolicy() if config.fsdp_offload else OffloadPolicy()
    inner = MixedPrecisionPolicy(param_dtype=computed_in, reduce_dtype=None if computed_in is None else torch.float32)
    outer = MixedPrecisionPolicy(
        param_dtype=computed_in,
        reduce_dtype=inner.reduce_dtype,
        output_dtype=None if computed_in is None else torch.float32,
    )
    for block in found:
        fully_shard(
            block,
            mesh=devices,
            reshard_after_forward=config.fsdp_reshard,
            mp_policy=inner,
            offload_policy=offload,
        )
    # The root's weights are used at the start and at the end of a pass, so they stay gathered in between.
    fully_shard(model, mesh=devices, reshard_after_forward=False, mp_policy=outer, offload_policy=offload)
    _add_up(model)
    _prefetch(found, config.fsdp_prefetch)


def _add_up(model: nn.Module) -> None:
    """Sum gradients over ranks instead of averaging: gloo can only sum, and the losses are scaled already."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _prefetch(found: Sequence[nn.Module], ahead: int) -> None:
    """Gather the weights of the next blocks while one computes, in the order of the blocks in the model."""
    sharded: list[FSDPModule] = [block for block in found if isinstance(block, FSDPModule)]
    for number, block in enumerate(sharded):
        if ahead:
            block.set_modules_to_forward_prefetch(sharded[number + 1 : number + 1 + ahead])
            block.set_modules_to_backward_prefetch(sharded[max(0, number - ahead) : number][::-1])


def time_collectives(model: nn.Module, waits: CommWaits) -> None:
    """Measure the waits of every sharded module; without effect on a torch that lacks custom collectives."""
    gather, scatter = _Gather(waits), _Scatter(waits)
    for module in model.modules():
        if isinstance(module, FSDPModule) and hasattr(module, "set_custom_all_gather"):
            module.set_custom_all_gather(gather)  # type: ignore[arg-type] # its base class is private
            module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type] # as above
            module.set_all_reduce_hook(scatter.added_up)


class _Collective:
    def __init__(self, waits: CommWaits) -> None:
        self._waits = waits

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty output buffer for the collective."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Collective):
    """Timed all-gather of weights."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        with self._waits.during(Wait.ALL_GATHER):
            return ALL_GATHER(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scatter(_Collective):
    """Timed reduce-scatter of gradients."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        with self._waits.during(Wait.REDUCE_SCATTER):
            return REDUCE_SCATTER(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    def added_up(self, _: Tensor) -> None:
        """Add the time of the all-reduce over replicas to the wait; with one replica that is zero."""
        self._waits.extend_wait(Wait.REDUCE_SCATTER)


class Fsdp(Strategy):
    """FSDP strategy for a model that :func:`ddp_trainer.train.parallel.fsdp.shard` has cut.

    Gradients are summed over ranks, not averaged: see :class:`.strategy.ScaledBackward`.
    """

    def __init__(self, arguments: StrategyArguments) -> None:
        super().__init__(arguments)
        assert isinstance(self.model, FSDPModule)  # noqa: S101 - cut before the optimizer was built
        self._sharded: FSDPModule = self.model
        self._is_sliced = arguments.sharded is not None and arguments.sharded.mesh.layout.tp > 1
        self.computes_together = self._is_sliced
        self._passes = Passes(arguments.plan, arguments.group.data_size, arguments.config)
        assert arguments.example is not None  # noqa: S101 - every sharded model has one
        self._example = arguments.example
        self._batch: Batch | None = None
        self._made = self._wanted = 0
        self._adds_up = True

    def begin(self, step: int) -> None:
        """Reset the count of passes, and look up how many this step needs on every rank."""
        self._made, self._wanted = 0, self._passes.of(step)

    def forward(self, batch: Batch) -> Tensor:
        """Return the losses of one more pass.

        Gradients are exchanged in the last pass of the step. On this rank that pass may be an empty one.
        """
        self._made += 1
        if (is_last := self._made >= self._wanted) is not self._adds_up:
            self._sharded.set_requires_gradient_sync(is_last)
            self._adds_up = is_last
        self._batch = batch
        with self._group.convert_pass_errors(), self._pass_context():
            return full_losses(super().forward(batch))

    def backward(self, losses: Tensor, samples: int) -> None:
        """Add the gradients; ranks gather weights and reduce gradients during the pass.

        Args:
            losses: Losses of this pass, one per sample, float, shape ``(n,)``.
            samples: Number of samples of the whole global step.
        """
        with self._group.convert_pass_errors(), self._pass_context():
            super().backward(losses, samples)

    def reduce(self, samples: int) -> None:  # noqa: ARG002 - empty passes contribute nothing
        """Make empty passes until this rank has made as many as the others; buffers are restored afterwards."""
        if self._made >= self._wanted:
            return
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        while self._made < self._wanted:
            losses = self.forward(self._example() if self._batch is None else self._batch)
            with self._group.convert_pass_errors(), self._pass_context():
                torch.autograd.backward(losses, torch.zeros_like(losses))
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.detach().copy_(before)

    def _pass_context(self) -> AbstractContextManager[None]:
        return in_slices() if self._is_sliced else nullcontext()


class Passes:
    """Number of passes of the rank that makes the most."""

    def __init__(self, plan: BatchPlan, ranks: int, config: Config) -> None:
        """``ranks`` is the number of ranks that a batch is divided among."""
        self._plan, self._ranks, self._most = plan, ranks, config.micro_batch
        self._together = config.level is Level.FAST
        self._known: dict[int, int] = {}

    def of(self, step: int) -> int:
        """Return the number of passes in a global step; at least 1."""
        length, slices = self._plan.batch_length(step), self._plan.batch_slices
        if length not in self._known:
            sizes, of_ranks = shares(length, slices, slices), shares(length, slices, self._ranks)
            runs = (
                [[size] for size in of_ranks]
                if self._together
                else [sizes[cut(slices, self._ranks, rank)] for rank in range(self._ranks)]
            )
            self._known[length] = max(sum(-(-size // (self._most or size or 1)) for size in run) for run in runs)
        return self._known[length]
