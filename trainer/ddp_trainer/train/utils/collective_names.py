"""Single-tensor collectives under the names of the installed torch.

torch 2.13 renamed them and warns about the old names; older versions have only the old names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch.distributed as dist

ALL_GATHER: Final[Callable[..., Any]] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Final[Callable[..., Any]] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
