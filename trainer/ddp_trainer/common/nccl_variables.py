"""Variables of torch's NCCL backends that undo ``--survive-on-nccl``. Standard library only."""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.lint.values import is_yes

DESYNC_DEBUG: Final = "TORCH_NCCL_DESYNC_DEBUG"
DISTRIBUTED_DEBUG: Final = "TORCH_DISTRIBUTED_DEBUG"
USE_NCCL2: Final = "TORCH_DIST_USE_NCCL2"
"""``1`` makes the backend name ``nccl`` mean nccl2 in torch 2.14; ``0`` makes it mean the older backend in 2.15."""


def undoes_survival(name: str, value: str) -> bool:
    """Return whether a variable makes torch ignore ``TORCH_NCCL_ASYNC_ERROR_HANDLING=0``.

    Source: the constructor of ``ProcessGroupNCCL``, which then takes ``SkipCleanUp``, its value 3.

    >>> undoes_survival("TORCH_DISTRIBUTED_DEBUG", "detail"), undoes_survival("TORCH_NCCL_DESYNC_DEBUG", "0")
    (True, False)
    """
    return (name == DISTRIBUTED_DEBUG and value.upper() == "DETAIL") or (name == DESYNC_DEBUG and is_yes(value))
