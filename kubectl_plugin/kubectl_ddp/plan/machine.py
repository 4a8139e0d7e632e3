"""GPUs and links between them, as data with sources.

Compute figures are the vendor's, for dense arithmetic (data sheets list the figures with sparsity, twice as high,
beside or instead of them). Link figures are for one direction (data sheets add both). Memory is the data sheet's figure
in 10^9 bytes; the driver reports a few per cent more. Where a data sheet lists no network, the figure is the share per
GPU in the vendor's or cloud's own machine.

Sources: NVIDIA's data sheets of A100 (2021), H100 (2023), H200 (2024), L4, L40S and A10 (2023) and of DGX A100, H100,
H200 and B200; for A10G, L4 and L40S the network of AWS' g5.48xlarge, g6.48xlarge and g6e.48xlarge (instance types,
2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.nearest import suggest_known

_REACHED: Final = 0.8
"""Share of a link's bandwidth that collectives achieve with large messages.

All-reduces of nccl-tests measure 0.76 (A100) to 1.0 (H100) of NVLink's bandwidth, and 0.93 of eight times 400 Gb/s
(Azure's and NVIDIA's published health checks).
"""
GIGA: Final = 10**9
RESERVED_BYTES: Final = 4 * 2**30
"""Default of the memory per GPU that is reserved for CUDA's context, NCCL's buffers and fragmentation."""
TERA: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    products: tuple[str, ...]
    """Values of the label ``nvidia.com/gpu.product``; suffixes such as ``-SHARED`` also match."""
    memory_bytes: int
    bf16_flops: float
    """Peak dense throughput, per second."""
    fp32_flops: float
    """Peak throughput without tensor cores, per second."""
    near_bytes: float
    """Bytes per second, in one direction, to the other GPUs of the machine: NVLink, or PCIe without NVLink."""
    far_bytes: float
    """Bytes per second, in one direction, to other machines: the network's share per GPU."""
    memory_bytes_per_second: float
    """Bandwidth of the GPU's own memory."""


def _gpu(
    name: str, *products: str, memory: float, speed: float, bf16: float, fp32: float, near: float, gigabits: float
) -> tuple[str, Gpu]:
    """Return name and figures of a GPU.

    Args:
        name: Short name.
        products: Values of the product label.
        memory: Memory in gigabytes.
        speed: Memory bandwidth in terabytes per second.
        bf16: Peak in teraflops.
        fp32: Peak without tensor cores in teraflops.
        near: Bandwidth within the machine in gigabytes per second.
        gigabits: Network bandwidth per GPU in gigabits per second.
    """
    gpu = Gpu(
        name=name,
        products=products,
        memory_bytes=round(memory * GIGA),
        bf16_flops=bf16 * TERA,
        fp32_flops=fp32 * TERA,
        near_bytes=near * GIGA,
        far_bytes=gigabits / 8 * GIGA,
        memory_bytes_per_second=speed * TERA,
    )
    return name, gpu


GPUS: Final[Mapping[str, Gpu]] = dict(
    [
        _gpu("B200", "NVIDIA-B200", memory=180, speed=8, bf16=2250, fp32=80, near=900, gigabits=400),
        _gpu("H200", "NVIDIA-H200", memory=141, speed=4.8, bf16=989, fp32=67, near=450, gigabits=400),
        _gpu("H100", "NVIDIA-H100-80GB-HBM3", memory=80, speed=3.35, bf16=989, fp32=67, near=450, gigabits=400),
        _gpu("H100-PCIe", "NVIDIA-H100-PCIe", memory=80, speed=2, bf16=756, fp32=51, near=64, gigabits=200),
        _gpu("A100-80GB", "NVIDIA-A100-SXM4-80GB", memory=80, speed=2.039, bf16=312, fp32=19.5, near=300, gigabits=200),
        _gpu("A100-40GB", "NVIDIA-A100-SXM4-40GB", memory=40, speed=1.555, bf16=312, fp32=19.5, near=300, gigabits=200),
        _gpu("A100-PCIe", "NVIDIA-A100-80GB-PCIe", memory=80, speed=1.935, bf16=312, fp32=19.5, near=32, gigabits=100),
        _gpu("L40S", "NVIDIA-L40S", memory=48, speed=0.864, bf16=362, fp32=91.6, near=32, gigabits=50),
        _gpu("L4", "NVIDIA-L4", memory=24, speed=0.3, bf16=121, fp32=30.3, near=32, gigabits=12.5),
        _gpu("A10G", "NVIDIA-A10G", memory=24, speed=0.6, bf16=70, fp32=35, near=32, gigabits=12.5),
    ]
)
"""Figures by name. L4 and A10G reach other GPUs through PCIe 4.0 with 16 lanes."""


def gpu_of(text: str) -> Gpu:
    """Return a kind of GPU by its name or its product label. Raises UsageError.

    >>> gpu_of("NVIDIA-H100-80GB-HBM3").name, gpu_of("h100").name
    ('H100', 'H100')
    """
    wanted = text.lower()
    if "-mig-" in wanted:
        raise UsageError(
            f"--gpu-type is '{text}', a slice of a GPU, and plans are of whole ones.",
            hint=f"There are {', '.join(GPUS)}.",
        )
    for gpu in GPUS.values():
        if wanted == gpu.name.lower() or any(_is_of(wanted, each.lower()) for each in gpu.products):
            return gpu
    raise UsageError(
        f"--gpu-type is '{text}', and the figures of such a GPU are not known.", hint=suggest_known(text.upper(), GPUS)
    )


def _is_of(wanted: str, product: str) -> bool:
    """Return True if a label is of this product; the suffix ``-NVL`` denotes a different GPU."""
    return f"{wanted}-".startswith(f"{product}-") and "nvl" not in wanted.split("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """All GPUs of a job."""

    gpu: Gpu
    nodes: int
    per_node: int
    far_bytes: float
    """Bytes per second and GPU between nodes, in one direction."""
    reserved_bytes: int
    """Memory per GPU that training cannot use: CUDA's context, NCCL's buffers, fragmentation."""

    @property
    def world(self) -> int:
        """Total number of GPUs, one rank each."""
        return self.nodes * self.per_node

    @property
    def available_bytes(self) -> int:
        """Memory per GPU that training can use."""
        return self.gpu.memory_bytes - self.reserved_bytes

    def link(self, stride: int, size: int) -> float:
        """Return the bytes per second and rank, in one direction, in a group of ``size`` ranks, ``stride`` apart.

        Within a node, this is the bandwidth of NVLink. Between nodes, all ranks of a group within a node send at the
        same time, each over its own share of the network. A group of whole nodes is therefore faster than a group with
        one rank per node.
        """
        if stride * size <= self.per_node:
            return _REACHED * self.gpu.near_bytes
        together = min(size, max(1, self.per_node // stride))
        return _REACHED * min(self.gpu.near_bytes, self.far_bytes * together)

    def hop(self, stride: int, size: int) -> float:
        """Return the same for the slowest hop between consecutive ranks, where each rank uses only its own share."""
        is_near = stride * size <= self.per_node
        return _REACHED * (self.gpu.near_bytes if is_near else min(self.gpu.near_bytes, self.far_bytes))

    def describe(self) -> str:
        """Return a description such as ``16 H100 on 2 nodes``."""
        where = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{self.world} {self.gpu.name} on {where}"
