"""The collectives of ``fully_shard``, with a stopwatch.

The public joint for collectives of one's own takes these in place of torch's, which they do not differ from in what
they do. Between replicas gradients are added up by torch itself, at once after its reduce-scatter; it calls a hook
when that is done, and so it is measured, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.common.constants import Wait
from ddp_trainer.train.observability.comm_wait import CommWaits
from ddp_trainer.train.utils.collective_names import ALL_GATHER, REDUCE_SCATTER


def time_collectives(model: nn.Module, waits: CommWaits) -> None:
    """Let every sharded part of the model tell what it waits for; of a torch without this joint, nothing is told."""
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
        """Where what arrives is put."""
        return torch.empty(*size, dtype=dtype, device=device)


class _Gather(_Collective):
    """Weights of all ranks."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        with self._waits.during(Wait.ALL_GATHER):
            return ALL_GATHER(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scatter(_Collective):
    """This rank's piece of the sum of gradients."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> Any:
        with self._waits.during(Wait.REDUCE_SCATTER):
            return REDUCE_SCATTER(output_tensor, input_tensor, group=group, op=op, async_op=async_op)

    def added_up(self, _: Tensor) -> None:
        """The piece was added up over replicas, too; where there is one of them, that took no time."""
        self._waits.went_on(Wait.REDUCE_SCATTER)
