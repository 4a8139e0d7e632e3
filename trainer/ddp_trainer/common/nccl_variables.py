"""Variables of torch's NCCL backends that undo ``--survive-on-nccl``. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ddp_trainer.common.lint.values import is_yes

DESYNC_DEBUG: Final = "TORCH_NCCL_DESYNC_DEBUG"
DISTRIBUTED_DEBUG: Final = "TORCH_DISTRIBUTED_DEBUG"
USE_NCCL2: Final = "TORCH_DIST_USE_NCCL2"
"""``1`` makes the backend name ``nccl`` mean nccl2 in torch 2.14; ``0`` makes it mean the older backend in 2.15."""


def variables_against_survival(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the set variables that make torch ignore ``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``.

    Source: the constructor of ``ProcessGroupNCCL``, which then takes ``SkipCleanUp``, its value 3.

    >>> variables_against_survival({"TORCH_DISTRIBUTED_DEBUG": "detail", "TORCH_NCCL_DESYNC_DEBUG": "0"})
    ['TORCH_DISTRIBUTED_DEBUG']
    """
    is_set = {
        DISTRIBUTED_DEBUG: environ.get(DISTRIBUTED_DEBUG, "").upper() == "DETAIL",
        DESYNC_DEBUG: is_yes(environ.get(DESYNC_DEBUG, "")),
    }
    return [name for name, value in is_set.items() if value]
