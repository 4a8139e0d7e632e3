"""Apply ``fully_shard`` to a model, block by block, before its optimizer is built.

:func:`shard` cuts each weight into one shard per rank of the mesh dimension ``shard``. Blocks are the modules of the
class names in ``--fsdp-blocks``. Without that flag they are the layers that activation checkpointing would use: the
entries of every ``nn.ModuleList``, or of an ``nn.Sequential``. Weights outside all blocks form one more block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from ddp_trainer.common.enums import PrecisionName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.transforms.blocks import blocks, named_blocks
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
