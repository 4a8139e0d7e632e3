"""GPUs and what lies between them, as data with sources.

Figures are the vendor's own, of dense arithmetic (data sheets print those with sparsity, twice as much, beside or
instead) and of one direction of a link (data sheets add both). Memory is the data sheet's, in 10^9 bytes: what the
driver reports is a few per cent more. Where a data sheet says no network, it is that of the vendor's or the cloud's own
machine, for each of its GPUs.

Sources: NVIDIA's data sheets of A100 (2021), H100 (2023), H200 (2024), L4, L40S and A10 (2023) and of DGX A100, H100,
H200 and B200; for A10G, L4 and L40S the network of AWS' g5.48xlarge, g6.48xlarge and g6e.48xlarge (instance types,
2025).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError

_REACHED: Final = 0.8
"""Share of a link's bandwidth that collectives reach with large messages: all-reduces of nccl-tests measure 0.76 (A100)
to 1.0 (H100) of NVLink's, and 0.93 of eight times 400 Gb/s (Azure's and NVIDIA's published health checks)."""
GIGA: Final = 10**9
RESERVED_BYTES: Final = 4 * 2**30
"""Of each GPU's memory, unless somebody knows better: what CUDA's context, NCCL's buffers and gaps take."""
TERA: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    products: tuple[str, ...]
    """What the label ``nvidia.com/gpu.product`` of its machines says; more may follow, as in ``-SHARED``."""
    memory_bytes: int
    bf16_flops: float
    """Peak, dense, per second."""
    fp32_flops: float
    """Peak without tensor cores, per second."""
    near_bytes: float
    """Bytes per second, in one direction, to the other GPUs of its machine: NVLink, or PCIe where it has none."""
    far_bytes: float
    """Bytes per second, in one direction, to other machines: the network's share of each GPU."""
    memory_bytes_per_second: float
    """To and from its own memory."""


def _gpu(
    name: str, *products: str, memory: float, speed: float, bf16: float, fp32: float, near: float, gigabits: float
) -> tuple[str, Gpu]:
    """``memory`` and ``near`` in gigabytes, ``speed`` of memory in terabytes, ``bf16`` and ``fp32`` in teraflops."""
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
"""Name → figures. An L4's and an A10G's neighbours are behind PCIe 4.0 with 16 lanes."""


def gpu_of(text: str) -> Gpu:
    """A kind of GPU by its name, or by the product that a cluster's label says. Raises UsageError.

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
    close = difflib.get_close_matches(wanted, {name.lower(): name for name in GPUS}, n=1)
    names = {name.lower(): name for name in GPUS}
    hint = f"Did you mean '{names[close[0]]}'?" if close else f"There are {', '.join(GPUS)}."
    raise UsageError(f"--gpu-type is '{text}', and the figures of such a GPU are not known.", hint=hint)


def _is_of(wanted: str, product: str) -> bool:
    """Whether a label is of this product; ``-NVL`` behind its name makes another GPU of it."""
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
    """Of each GPU's memory, what training cannot have: CUDA's context, NCCL's buffers, what lies between tensors."""

    @property
    def world(self) -> int:
        """GPUs in all, a rank each."""
        return self.nodes * self.per_node

    @property
    def available_bytes(self) -> int:
        """Memory of each GPU that training can have."""
        return self.gpu.memory_bytes - self.reserved_bytes

    def link(self, stride: int, size: int) -> float:
        """Bytes per second and rank, in one direction, in a group of ``size`` ranks that lie ``stride`` apart.

        Within a node it is that of NVLink. Between nodes a group's ranks in a node send at the same time, each by its
        own part of the network, which is why a group of whole nodes is faster than one with a single rank in each.
        """
        if stride * size <= self.per_node:
            return _REACHED * self.gpu.near_bytes
        together = min(size, max(1, self.per_node // stride))
        return _REACHED * min(self.gpu.near_bytes, self.far_bytes * together)

    def hop(self, stride: int, size: int) -> float:
        """The same of the slowest hop from one rank to the next, which each rank makes for itself."""
        is_near = stride * size <= self.per_node
        return _REACHED * (self.gpu.near_bytes if is_near else min(self.gpu.near_bytes, self.far_bytes))

    def describe(self) -> str:
        """As in ``16 H100 on 2 nodes``."""
        where = "one node" if self.nodes == 1 else f"{self.nodes} nodes"
        return f"{self.world} {self.gpu.name} on {where}"
