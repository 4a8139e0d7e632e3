"""Processors that each worker may use, so that it stays near its GPU (torchrun's ``--numa-binding``).

:func:`bindings` returns them, from the topology of a :class:`Machine`. The launcher never imports torch, so the
topology comes from /sys and /proc. Worker n is assumed to use the n-th visible GPU in the order of the PCI bus. This is
CUDA's own order if all GPUs are of one kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.launch.protocol.console import LaunchError

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Machine:
    """Processors and GPUs of this machine, as the kernel reports them.

    Methods raise OSError or ValueError if the kernel does not report them.
    """

    allowed: Cpus
    """Processors that this container may use."""
    gpus: tuple[str, ...]
    """PCI addresses of the visible GPUs, in the order in which workers use them."""
    root: Path = Path("/")

    def node_of(self, gpu: str) -> int:
        """Return the NUMA node of a GPU. The kernel's -1, on a machine with one node, becomes 0."""
        return max(0, int(self._text(f"sys/bus/pci/devices/{gpu}/numa_node")))

    def local_cpus(self, gpu: str) -> Cpus:
        """Return the allowed processors of the NUMA node of a GPU."""
        return parse_cpu_list(self._text(f"sys/devices/system/node/node{self.node_of(gpu)}/cpulist")) & self.allowed

    def socket_of(self, cpu: int) -> int:
        """Return the number of a processor's physical package."""
        return int(self._text(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def core_of(self, cpu: int) -> int:
        """Return the lowest processor that shares a core with ``cpu``."""
        return min(parse_cpu_list(self._text(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))

    def complex_of(self, cpu: int) -> int:
        """Return the lowest processor that shares the cache of the highest level with ``cpu``."""
        caches = (self.root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")
        largest = max(caches, key=lambda cache: int((cache / "level").read_text()))
        return min(parse_cpu_list((largest / "shared_cpu_list").read_text()))

    def _text(self, path: str) -> str:
        return (self.root / path).read_text()


def this_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Return the processors and GPUs of this machine.

    Raises:
        LaunchError: If ``CUDA_VISIBLE_DEVICES`` does not identify GPUs of this machine.
    """
    known = sorted((root / "proc/driver/nvidia/gpus").glob("*"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        chosen = [gpu.name for gpu in known]
    else:
        chosen = [_address(name.strip(), known, visible) for name in visible.split(",") if name.strip()]
    return Machine(allowed=frozenset(os.sched_getaffinity(0)), gpus=tuple(chosen), root=root)


def _address(name: str, known: list[Path], visible: str) -> str:
    if name.isdecimal() and int(name) < len(known):
        return known[int(name)].name
    for gpu in known:
        if name.startswith("GPU-") and name in (gpu / "information").read_text():
            return gpu.name
    raise LaunchError(
        f"--numa-binding: CUDA_VISIBLE_DEVICES={visible} names {name}, which is not a GPU of this machine."
    )


def _of_socket(machine: Machine, gpu: str) -> Cpus:
    socket = machine.socket_of(min(machine.local_cpus(gpu)))
    return frozenset(cpu for cpu in machine.allowed if machine.socket_of(cpu) == socket)


def _exclusive(machine: Machine, gpu: str) -> Cpus:
    """Return an even share of the node's cores. If they do not divide evenly, the first GPUs have one core more."""
    cores = _grouped(machine.local_cpus(gpu), machine.core_of)
    peers = _numa_node_gpus(machine, gpu)
    if len(cores) < len(peers):
        raise LaunchError(
            f"--numa-binding exclusive: {len(peers)} GPUs share a NUMA node on which {len(cores)} cores may be used; "
            "allow more, or give --numa-binding node."
        )
    place, (share, rest) = peers.index(gpu), divmod(len(cores), len(peers))
    start = place * share + min(place, rest)
    return frozenset().union(*cores[start : start + share + (place < rest)])


def _core_complex(machine: Machine, gpu: str) -> Cpus:
    """Return the cores that share a cache, from the largest such groups first."""
    groups = sorted(_grouped(machine.local_cpus(gpu), machine.complex_of), key=lambda cpus: (-len(cpus), min(cpus)))
    return groups[_numa_node_gpus(machine, gpu).index(gpu) % len(groups)]


_MODES: Final[dict[str, Callable[[Machine, str], Cpus]]] = {
    "node": Machine.local_cpus,
    "socket": _of_socket,
    "exclusive": _exclusive,
    "core-complex": _core_complex,
}

NAMES: Final = tuple(_MODES)


def bindings(mode: str, workers: int, machine: Machine) -> tuple[Cpus, ...]:
    """Return the processors of each worker. Worker n uses the n-th visible GPU.

    Raises:
        LaunchError: If the machine does not show a GPU for each worker, does not report its topology, or allows no
            processor near a GPU.
    """
    if workers > len(machine.gpus):
        raise LaunchError(
            f"--numa-binding {mode} keeps each worker near its GPU, and this machine shows {len(machine.gpus)} for "
            f"{workers} workers; leave the flag out, or start fewer."
        )
    try:
        bound = tuple(_MODES[mode](machine, gpu) for gpu in machine.gpus[:workers])
    except (OSError, ValueError) as error:
        raise LaunchError(
            f"--numa-binding {mode}: the kernel does not report what is near the GPUs: {error}."
        ) from error
    if not all(bound):
        gpu = machine.gpus[bound.index(frozenset())]
        raise LaunchError(
            f"--numa-binding {mode}: none of the processors near GPU {gpu} may be used here; allow them "
            "in the cpuset, or leave the flag out."
        )
    return bound


def parse_cpu_list(text: str) -> Cpus:
    """Parse the kernel's format for sets of processors. Raises ValueError for other text.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    if not re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text.strip()):
        raise ValueError(f"{text.strip()!r} is not a list of processors")
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def _numa_node_gpus(machine: Machine, gpu: str) -> list[str]:
    """Return all visible GPUs of the same NUMA node."""
    node = machine.node_of(gpu)
    return [peer for peer in machine.gpus if machine.node_of(peer) == node]


def _grouped(cpus: Collection[int], key: Callable[[int], int]) -> list[Cpus]:
    """Group processors by key, in the order of the keys."""
    keys = {cpu: key(cpu) for cpu in cpus}
    return [frozenset(cpu for cpu in cpus if keys[cpu] == group) for group in sorted(set(keys.values()))]
