"""What torch knows of this rank's GPU, asked without waiting for it; nothing where there is none.

torch is never imported here: a process that has not imported it has no tensors to tell of.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Final

PEAK_FLOPS: Final = (
    ("NVIDIA GB200", 2.5e15),
    ("NVIDIA B200", 2.25e15),
    ("NVIDIA H200 NVL", 835e12),
    ("NVIDIA H200", 989e12),
    ("NVIDIA H100 NVL", 835e12),
    ("NVIDIA H100 PCIe", 756e12),
    ("NVIDIA H100 80GB HBM3", 989e12),
    ("NVIDIA A100", 312e12),
    ("NVIDIA A40", 149.7e12),
    ("NVIDIA A30", 165e12),
    ("NVIDIA A10G", 70e12),
    ("NVIDIA L40S", 362e12),
    ("NVIDIA L4", 121e12),
    ("Tesla V100", 125e12),
    ("Tesla T4", 65e12),
    ("AMD Instinct MI300X", 1307e12),
)
"""Beginning of a device's name → operations a second in bfloat16 (float16 where there is none), dense, by the maker's
data sheet. The first that fits counts. A part of a device (MIG) and every device that is not here have none: no MFU is
better than a wrong one."""

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
    """Most operations a second of the device of this name; None where that is not known.

    >>> peak_flops("NVIDIA A100-SXM4-80GB"), peak_flops("NVIDIA L40S"), peak_flops("NVIDIA L4")
    (312000000000000.0, 362000000000000.0, 121000000000000.0)
    >>> peak_flops("NVIDIA A100-SXM4-80GB MIG 1g.10gb"), peak_flops("NVIDIA L400"), peak_flops("")
    (None, None, None)
    """
    if " MIG " in name:
        return None
    for begin, flops in PEAK_FLOPS:
        if name.startswith(begin) and not name[len(begin) :][:1].isalnum():
            return flops
    return None


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
