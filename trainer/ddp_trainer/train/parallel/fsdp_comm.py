"""Timed collectives of ``fully_shard``.

:func:`time_collectives` replaces torch's all-gather and reduce-scatter through the public interface for custom
collectives. The replacements do the same and measure the wait. torch itself all-reduces gradients between replicas,
directly after its reduce-scatter, and calls a hook afterwards. The hook measures that time as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ddp_trainer.common.time_classes import Wait
from ddp_trainer.train.observability.comm_wait import CommWaits
from ddp_trainer.train.utils.collective_names import ALL_GATHER, REDUCE_SCATTER


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
