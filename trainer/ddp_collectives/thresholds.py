"""Minimum speeds of a healthy GPU and a healthy machine, as data with sources. Standard library only.

A floor is a share of the data sheet's value, or of the value that a cloud requires of its machines before use. A
machine below it is unfit. A machine above it may still be slow, and is compared with other nodes and earlier runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from ddp_collectives.errors import BadRequest
from ddp_collectives.result import Result
from ddp_trainer.common.gpu_specs import find_gpu_specs

MATMUL_SHARE: Final = 0.5
"""Required share of the data sheet's bfloat16 rate. Products of large matrices reach 60 to 85 %, less if power limits
the clocks. A GPU with stuck clocks or a power brake does not reach half of it.
"""
MEMORY_SHARE: Final = 0.7
"""Required share of the data sheet's bandwidth, for a copy within the GPU's memory. It reads and writes each byte."""
BUS_SHARE: Final = 0.9
"""Required share of Azure's values, since other machines have other clocks and topologies."""
LEAST_BUS_BYTES: Final = 1 << 30
"""Size from which a floor applies. Smaller messages do not fill NVLink: an all-reduce of 128 MiB measures a fifth less
than one of 16 GiB.
"""

AZURE: Final = "https://github.com/Azure/azurehpc-health-checks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Floors of one kind of GPU; None if unknown."""

    matmul_flops: float | None = None
    memory_bytes_per_second: float | None = None
    host_bytes_per_second: float | None = None
    """Copy to or from host memory, in either direction."""
    bus_bytes_per_second: float | None = None
    """All-reduce between all GPUs of one machine."""
    gpus: int | None = None
    """GPUs of that machine; the bus bandwidth of fewer GPUs differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Requirements of Azure for one of its machines, in gigabytes per second."""

    begin: str
    """Prefix of its GPUs' name."""
    gpus: int
    host: float
    bus: float
    source: str


MACHINES: Final = (
    Machine(begin="NVIDIA GB200", gpus=4, host=48, bus=432, source=f"{AZURE} (conf/nd128isr_ndr_gb200_v6.conf)"),
    Machine(begin="NVIDIA H200", gpus=8, host=48, bus=431, source=f"{AZURE} (conf/nd96isr_h200_v5.conf)"),
    Machine(begin="NVIDIA H100 80GB HBM3", gpus=8, host=52, bus=460, source=f"{AZURE} (conf/nd96isr_h100_v5.conf)"),
    Machine(begin="NVIDIA A100-SXM4", gpus=8, host=24, bus=228, source=f"{AZURE} (conf/nd96amsr_a100_v4.conf)"),
)
"""Limits of ``check_gpu_bw`` or ``check_cuda_bw``, and ``check_nccl_allreduce``, in Azure's health checks. B200 and
B300 have no published floor.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceThroughput:
    """Measured speeds of one rank's GPU."""

    matmul_flops: float
    memory_bytes_per_second: float
    host_bytes_per_second: float
    """Speed of the slower direction."""


def thresholds_for(name: str, own: Mapping[str, Thresholds] | None = None) -> Thresholds:
    """Return the floors of the GPU with this name. Floors in ``own``, from a file, take precedence.

    >>> f"{thresholds_for('NVIDIA H100 80GB HBM3').host_bytes_per_second:.3g}"
    '4.68e+10'
    >>> thresholds_for("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == thresholds_for("cpu") == Thresholds()
    True
    """
    for begin, floors in (own or {}).items():
        if name.startswith(begin):
            return floors
    figures = find_gpu_specs(name)
    if figures is None:
        return Thresholds()
    machine = next((each for each in MACHINES if name.startswith(each.begin)), None)
    return Thresholds(
        matmul_flops=MATMUL_SHARE * figures.bf16_flops,
        memory_bytes_per_second=MEMORY_SHARE * figures.memory_bytes,
        host_bytes_per_second=BUS_SHARE * machine.host * 1e9 if machine else None,
        bus_bytes_per_second=BUS_SHARE * machine.bus * 1e9 if machine else None,
        gpus=machine.gpus if machine else None,
    )


def read_thresholds(file: str) -> Mapping[str, Thresholds]:
    """Read a site's own floors from a JSON object of name prefixes.

    Raises:
        BadRequest: The file is unreadable or invalid.
    """
    known = {field.name for field in fields(Thresholds)}
    try:
        document = json.loads(Path(file).read_text())
        for name, values in document.items():
            if wrong := [key for key, value in values.items() if key not in known or not _is_floor(value)]:
                raise BadRequest(f"--floors {file} has {wrong[0]!r} of {name!r}; there are {', '.join(sorted(known))}.")
        return {name: Thresholds(**values) for name, values in document.items()}
    except OSError as error:
        raise BadRequest(f"--floors {file} cannot be read: {error.strerror}.") from None
    except (ValueError, AttributeError):
        raise BadRequest(f"--floors {file} is not a JSON object of names, each with its floors.") from None


def _is_floor(value: Any) -> bool:
    return type(value) in {int, float} and 0 < value < 1e18


def threshold_violations(speeds: DeviceThroughput, floors: Thresholds) -> Iterator[str]:
    """Yield a phrase for each speed below its floor."""
    for name, unit, what in (
        ("matmul_flops", "TFLOP/s", "multiplies matrices"),
        ("memory_bytes_per_second", "TB/s", "copies in its memory"),
        ("host_bytes_per_second", "GB/s", "copies to or from the host"),
    ):
        floor, found = getattr(floors, name), getattr(speeds, name)
        if floor is not None and found < floor:
            scale = 1e9 if unit == "GB/s" else 1e12
            yield f"{what} at {found / scale:.3g} {unit}, below the floor of {floor / scale:.3g}"


def slow_all_reduces(results: Sequence[Result], floors: Thresholds, gpus: int, hosts: int) -> Iterator[str]:
    """Yield a phrase for each all-reduce below the floor.

    It must span a whole machine and be large enough to fill its links.
    """
    floor = floors.bus_bytes_per_second
    if floor is None or hosts != 1 or gpus != floors.gpus:
        return
    for result in results:
        is_large = result.operation == "all_reduce" and result.size_bytes >= LEAST_BUS_BYTES
        if is_large and result.bus_bytes_per_second < floor:
            yield (
                f"all_reduce of {result.size_bytes >> 30} GiB has a bus bandwidth of "
                f"{result.bus_bytes_per_second / 1e9:.3g} GB/s, below the floor of {floor / 1e9:.3g}"
            )
