"""Identity and memory of this rank's GPU, read from torch without synchronizing; empty without a GPU.

The module never imports torch: a process that has not imported it has no tensors to report.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Final

from ddp_trainer.common.gpu_specs import find_gpu_specs
from ddp_trainer.common.metric_names import MetricLabel

_NAME_LENGTH: Final = 64


def peak_flops(name: str) -> float | None:
    """Return the peak bfloat16 operations per second of the device with this name; None if unknown.

    >>> peak_flops("NVIDIA L4"), peak_flops("NVIDIA L400")
    (121000000000000.0, None)
    """
    figures = find_gpu_specs(name)
    return None if figures is None else figures.bf16_flops


def identity_of(device: str) -> dict[str, str]:
    """Return name and UUID of the GPU that torch calls ``device``, for example ``cuda:0``, by label.

    The UUID has the form of the DCGM exporter, with the prefix ``GPU-``. Both are empty for a CPU.

    Raises:
        Exception: The error of torch, if the device does not exist.
    """
    torch = sys.modules.get("torch")
    kind, _, number = device.partition(":")
    name = uuid = ""
    if torch is not None and kind == "cuda":
        properties = torch.cuda.get_device_properties(int(number or torch.cuda.current_device()))
        name = str(properties.name)[:_NAME_LENGTH]
        uuid = f"GPU-{properties.uuid}" if getattr(properties, "uuid", "") else ""
    return {MetricLabel.DEVICE_NAME: name, MetricLabel.GPU_UUID: uuid}


def memory() -> dict[str, float]:
    """Return the memory of the current device in bytes, with its allocation retries and out-of-memory errors since the
    process began, by metric name; empty if this process uses no GPU.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    device = torch.cuda.current_device()
    stats = torch.cuda.memory_stats(device)
    return {
        "ddp_gpu_memory_allocated_bytes": stats.get("allocated_bytes.all.current", 0),
        "ddp_gpu_memory_reserved_bytes": stats.get("reserved_bytes.all.current", 0),
        "ddp_gpu_memory_peak_allocated_bytes": stats.get("allocated_bytes.all.peak", 0),
        "ddp_gpu_memory_limit_bytes": torch.cuda.get_device_properties(device).total_memory,
        "ddp_gpu_alloc_retries_total": stats.get("num_alloc_retries", 0),
        "ddp_gpu_oom_total": stats.get("num_ooms", 0),
    }


def nccl_version(torch: ModuleType | None) -> str:
    """Return the version of NCCL, for example ``2.27.5``; empty if torch has no NCCL."""
    if torch is None or not torch.cuda.is_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))
