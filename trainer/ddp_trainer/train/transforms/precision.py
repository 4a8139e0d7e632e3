"""Reduced precision: check which dtypes a device supports, and compute forward pass and loss in them.

:func:`require_precision` refuses an unsupported precision, :func:`precision_context` returns the autocast context.
Weights, gradient sums and the optimizer stay in 32 bits; torch's autocast selects the operations that run in lower
precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train.utils.errors import BadConfig

AUTOCAST_TYPES: Final[Mapping[PrecisionName, torch.dtype]] = {
    PrecisionName.BF16: torch.bfloat16,
    PrecisionName.FP16: torch.float16,
}
_AMPERE: Final = (8, 0)
_PASCAL: Final = (5, 3)


def unsupported_reason(precision: PrecisionName, device: torch.device) -> str:
    """Return the reason why the device cannot compute in this precision; empty if it can."""
    if precision is PrecisionName.FP32:
        return ""
    if device.type == "cuda":
        have = torch.cuda.get_device_capability(device)
        need = _PASCAL if precision is PrecisionName.FP16 else _AMPERE
        name = torch.cuda.get_device_name(device)
        return f"{name} has no {precision} arithmetic (it came with {need[0]}.{need[1]})" if have < need else ""
    if precision is PrecisionName.TF32:
        return "the CPU has no tf32 arithmetic, only NVIDIA GPUs have"
    if precision is PrecisionName.FP16 and not _cpu_has_fp16():
        return "this processor has no fp16 arithmetic"
    return ""


def _cpu_has_fp16() -> bool:
    """Return whether torch's CPU kernels support fp16; True if torch offers no query."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())  # noqa: SLF001 - torch has no public query
    except (AttributeError, RuntimeError):
        return True


def require_precision(precision: PrecisionName, device: torch.device) -> None:
    """Refuse a precision that the device only emulates, at a fraction of the speed.

    Raises:
        BadConfig: The device does not support the precision.
    """
    reason = unsupported_reason(precision, device)
    if reason:
        instead = "fp32" if precision in {PrecisionName.BF16, PrecisionName.TF32} else "bf16 or fp32"
        raise BadConfig(f"--precision is {precision}, but {reason}.", hint=f"Give --precision {instead}.")


def precision_context(precision: PrecisionName, device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Return the context manager for forward pass and loss; enables TF32 in the process if configured."""
    if precision is PrecisionName.TF32:
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    dtype = AUTOCAST_TYPES.get(precision)
    if dtype is None:
        return nullcontext
    return lambda: torch.autocast(device.type, dtype)
