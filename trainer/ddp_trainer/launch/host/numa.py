"""Which processors a worker may use, so that it stays near its GPU: torchrun's ``--numa-binding``.

Read off /sys and /proc: the launcher never imports torch. Worker n is taken to use the n-th GPU that is visible, in
the order of the PCI bus, which is CUDA's own where all GPUs are of one kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.launch.protocol.errors import LaunchError

Cpus = frozenset[int]


@dataclass(frozen=True, slots=True)
class Machine:
    """What the kernel tells of processors and GPUs. Methods raise OSError and ValueError where it does not."""

    allowed: Cpus
    """Processors that this container may use."""
    gpus: tuple[str, ...]
    """PCI addresses of the visible ones, as the first worker, the second and so on use them."""
    root: Path = Path("/")

    def node_of(self, gpu: str) -> int:
        """NUMA node of a GPU; a machine with one node says -1."""
        return max(0, int(self._text(f"sys/bus/pci/devices/{gpu}/numa_node")))

    def cpus_of_node(self, node: int) -> Cpus:
        """Those of a NUMA node that we may use."""
        return numbers(self._text(f"sys/devices/system/node/node{node}/cpulist")) & self.allowed

    def socket_of(self, cpu: int) -> int:
        """Number of the package."""
        return int(self._text(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id"))

    def core_of(self, cpu: int) -> int:
        """The lowest of the processors that share a core."""
        return min(numbers(self._text(f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")))

    def complex_of(self, cpu: int) -> int:
        """The lowest of the processors that share the largest cache."""
        caches = (self.root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")
        largest = max(caches, key=lambda cache: int((cache / "level").read_text()))
        return min(numbers((largest / "shared_cpu_list").read_text()))

    def _text(self, path: str) -> str:
        return (self.root / path).read_text()


def this_machine(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Raises LaunchError for GPUs that are made visible in a way that does not tell which they are."""
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
    raise LaunchError(f"--numa-binding: CUDA_VISIBLE_DEVICES={visible} names {name}, which is no GPU of this machine.")


def _of_node(machine: Machine, gpu: str) -> Cpus:
    return machine.cpus_of_node(machine.node_of(gpu))


def _of_socket(machine: Machine, gpu: str) -> Cpus:
    socket = machine.socket_of(min(_of_node(machine, gpu)))
    return frozenset(cpu for cpu in machine.allowed if machine.socket_of(cpu) == socket)


def _exclusive(machine: Machine, gpu: str) -> Cpus:
    """An even share of the node's cores; where they do not divide, the first GPUs have one more."""
    cores = _grouped(_of_node(machine, gpu), machine.core_of)
    peers = _peers(machine, gpu)
    if len(cores) < len(peers):
        raise LaunchError(
            f"--numa-binding exclusive: {len(peers)} GPUs share a NUMA node on which {len(cores)} cores may be used; "
            "allow more, or give --numa-binding node."
        )
    place, (share, rest) = peers.index(gpu), divmod(len(cores), len(peers))
    start = place * share + min(place, rest)
    return frozenset().union(*cores[start : start + share + (place < rest)])


def _core_complex(machine: Machine, gpu: str) -> Cpus:
    """The cores that share a cache, the largest such groups first."""
    groups = sorted(_grouped(_of_node(machine, gpu), machine.complex_of), key=lambda cpus: (-len(cpus), min(cpus)))
    return groups[_peers(machine, gpu).index(gpu) % len(groups)]


_MODES: Final[dict[str, Callable[[Machine, str], Cpus]]] = {
    "node": _of_node,
    "socket": _of_socket,
    "exclusive": _exclusive,
    "core-complex": _core_complex,
}

NAMES: Final = tuple(_MODES)


def bindings(mode: str, workers: int, machine: Machine, first: int = 0) -> tuple[Cpus, ...]:
    """Processors of each worker, the first of which uses GPU ``first``.

    Raises LaunchError where the machine has no GPU for each, or does not tell.
    """
    if first + workers > len(machine.gpus):
        raise LaunchError(
            f"--numa-binding {mode} keeps each worker near its GPU, and this machine shows {len(machine.gpus)} for "
            f"{workers} workers; leave the flag out, or start fewer."
        )
    try:
        bound = tuple(_MODES[mode](machine, gpu) for gpu in machine.gpus[first : first + workers])
    except (OSError, ValueError) as error:
        raise LaunchError(f"--numa-binding {mode}: the kernel does not say what is near the GPUs: {error}.") from error
    if not all(bound):
        gpu = machine.gpus[first + bound.index(frozenset())]
        raise LaunchError(
            f"--numa-binding {mode}: none of the processors near GPU {gpu} may be used here; allow them "
            "in the cpuset, or leave the flag out."
        )
    return bound


def numbers(text: str) -> Cpus:
    """The kernel's way to write sets.

    >>> sorted(numbers("0-2,8"))
    [0, 1, 2, 8]
    """
    if not re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text.strip()):
        raise ValueError(f"{text.strip()!r} is no list of processors")
    ranges = (part.partition("-") for part in text.strip().split(",") if part)
    return frozenset(cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1))


def _peers(machine: Machine, gpu: str) -> list[str]:
    """All visible GPUs of the same node."""
    node = machine.node_of(gpu)
    return [each for each in machine.gpus if machine.node_of(each) == node]


def _grouped(cpus: Collection[int], key: Callable[[int], int]) -> list[Cpus]:
    """By key, in its order."""
    keys = {cpu: key(cpu) for cpu in cpus}
    return [frozenset(cpu for cpu in cpus if keys[cpu] == each) for each in sorted(set(keys.values()))]
