"""Apply ``fully_shard`` to a model, block by block, before its optimizer is built.

:func:`shard` cuts each weight into one shard per rank of the mesh dimension ``shard``. Blocks are the modules of the
class names in ``--fsdp-blocks``. Without that flag they are the layers that activation checkpointing would use: the
entries of every ``nn.ModuleList``, or of an ``nn.Sequential``. Weights outside all blocks form one more block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.observability.step_timer import CommWaits
from ddp_trainer.train.transforms.blocks import blocks, named_blocks
from ddp_trainer.train.utils.collective_names import ALL_GATHER, REDUCE_SCATTER
from ddp_trainer.train.utils.errors import BadConfig

_COMPUTED_IN: Final[Mapping[PrecisionName, torch.dtype]] = {
    PrecisionName.BF16: torch.bfloat16,
    PrecisionName.FP16: torch.float16,
}


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
    computed_in = _COMPUTED_IN.get(config.precision)
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
