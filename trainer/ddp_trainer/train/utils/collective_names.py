"""Collectives of one tensor by the names that torch 2.13 gave them, or else by those before, of which it warns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
