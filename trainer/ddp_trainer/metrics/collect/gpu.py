"""What torch knows of this rank's GPU, asked without waiting for it; nothing where there is none.

torch is never imported here: a process that has not imported it has no tensors to tell of.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from ddp_trainer.common.gpu_figures import figures_of

_NAME_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class Gpu:
    """Which device; empty words for a processor."""

    name: str = ""
    uuid: str = ""
    """As the DCGM exporter has it, with ``GPU-`` before it."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a GPU, in bytes, and what went wrong with it since the process began."""

    allocated: float
    reserved: float
    peak: float
    limit: float
    retries: int
    ooms: int


def peak_flops(name: str) -> float | None:
    """Most operations a second in bfloat16 of the device of this name; None where that is not known.

    >>> peak_flops("NVIDIA L4"), peak_flops("NVIDIA L400")
    (121000000000000.0, None)
    """
    figures = figures_of(name)
    return None if figures is None else figures.bf16_flops


def identity_of(device: str) -> Gpu:
    """The GPU that torch calls ``device``, as ``cuda:0``. Raises what torch raises for a device that is not there."""
    torch = sys.modules.get("torch")
    kind, _, number = device.partition(":")
    if torch is None or kind != "cuda":
        return Gpu()
    properties = torch.cuda.get_device_properties(int(number or torch.cuda.current_device()))
    uuid = getattr(properties, "uuid", "")
    return Gpu(str(properties.name)[:_NAME_LENGTH], f"GPU-{uuid}" if uuid else "")


def memory() -> Memory | None:
    """Of the current device; None where this process uses no GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    device = torch.cuda.current_device()
    stats = torch.cuda.memory_stats(device)
    return Memory(
        allocated=stats.get("allocated_bytes.all.current", 0),
        reserved=stats.get("reserved_bytes.all.current", 0),
        peak=stats.get("allocated_bytes.all.peak", 0),
        limit=torch.cuda.get_device_properties(device).total_memory,
        retries=stats.get("num_alloc_retries", 0),
        ooms=stats.get("num_ooms", 0),
    )


def nccl_version(torch: ModuleType | None) -> str:
    """As ``2.27.5``; empty where torch has no NCCL."""
    if torch is None or not torch.cuda.is_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))
