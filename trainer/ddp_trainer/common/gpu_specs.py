"""Peak figures of GPU models, for metrics and for the minimum values of a preflight.

:func:`find_gpu_specs` is the entry point. Standard library only. A part of a device (MIG) and a device that is not in
the table have no figures: none is better than a wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GpuSpecs:
    """Peak figures of one GPU model."""

    begin: str
    """Beginning of the device name that CUDA and NVML report."""
    bf16_flops: float
    """Dense floating-point operations per second in bfloat16 (float16 where there is no bfloat16)."""
    memory_bytes: float
    """Bandwidth of the device's own memory, in bytes per second."""


def _gpu_specs(begin: str, teraflops: float, terabytes: float) -> GpuSpecs:
    return GpuSpecs(begin, teraflops * 1e12, terabytes * 1e12)


FIGURES: Final = (
    _gpu_specs("NVIDIA GB300", 2500, 8),
    _gpu_specs("NVIDIA B300", 2250, 8),
    _gpu_specs("NVIDIA GB200", 2500, 8),
    _gpu_specs("NVIDIA B200", 2250, 7.7),
    _gpu_specs("NVIDIA GH200 144G HBM3e", 990, 4.9),
    _gpu_specs("NVIDIA GH200", 990, 4),
    _gpu_specs("NVIDIA H200 NVL", 835, 4.8),
    _gpu_specs("NVIDIA H200", 989, 4.8),
    _gpu_specs("NVIDIA H800 PCIe", 756, 2),
    _gpu_specs("NVIDIA H800", 989, 3.35),
    _gpu_specs("NVIDIA H20", 148, 4),
    _gpu_specs("NVIDIA H100 NVL", 835, 3.9),
    _gpu_specs("NVIDIA H100 PCIe", 756, 2),
    _gpu_specs("NVIDIA H100 80GB HBM3", 989, 3.35),
    _gpu_specs("NVIDIA A100-SXM4-80GB", 312, 2.039),
    _gpu_specs("NVIDIA A100 80GB PCIe", 312, 1.935),
    _gpu_specs("NVIDIA A100", 312, 1.555),
    _gpu_specs("NVIDIA A40", 149.7, 0.696),
    _gpu_specs("NVIDIA A30", 165, 0.933),
    _gpu_specs("NVIDIA A10G", 70, 0.6),
    _gpu_specs("NVIDIA L40S", 362, 0.864),
    _gpu_specs("NVIDIA L4", 121, 0.3),
    _gpu_specs("Tesla T4", 65, 0.3),
    _gpu_specs("AMD Instinct MI300X", 1307, 5.3),
)
"""Figures by device name; the first entry that matches counts. Figures are those of the makers' data sheets, without
sparsity: where a data sheet prints bfloat16 with sparsity, half of it.

Source: the data sheets at https://www.nvidia.com/en-us/data-center; of HGX B200 and B300, GB200 and GB300 NVL72 the
figures by GPU. NVIDIA's partners, who sell H20 and H800, repeat its figures for them. A10G:
https://aws.amazon.com/ec2/instance-types/g5. MI300X: AMD's data sheet."""


def find_gpu_specs(name: str) -> GpuSpecs | None:
    """Return the figures of a device, or None where they are not known.

    >>> [find_gpu_specs(name).bf16_flops / 1e12 for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA L4")]
    [312.0, 362.0, 121.0]
    >>> [find_gpu_specs(name) for name in ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA L400", "")]
    [None, None, None]
    """
    if " MIG " in name:
        return None
    for figures in FIGURES:
        if name.startswith(figures.begin) and not name[len(figures.begin) :][:1].isalnum():
            return figures
    return None
