"""Choice of a fabric from the other settings of a job, and of its values for the job's machines and version of NCCL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeAlias

from kubectl_ddp.fabrics.catalog import JOINT, NONE, SET, FabricValue, profiles

Version: TypeAlias = tuple[int, ...]


def version(text: str) -> Version:
    """Parse a version such as ``2.21`` into comparable numbers."""
    return tuple(int(part) for part in text.split("."))


def nccl_of(image: str) -> Version | None:
    """Return the NCCL version contained in an image name, or None.

    >>> nccl_of("example.com/nccl-tests:13.0-nccl2.28.7-1"), nccl_of("example.com/nccl-tests:1.2")
    ((2, 28, 7), None)
    """
    match = re.search(r"nccl[-_]?v?(\d+(?:\.\d+){1,2})", image)
    return version(match[1]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Properties of a job's nodes."""

    nodes: int
    """Maximum number of nodes."""
    gpus: int
    """GPUs per node."""
    machine: str = ""
    """Type of the machines, as clouds name them."""
    gpu_type: str = ""
    """Product of the GPUs."""
    accelerator: str = ""
    """GKE's label value for the GPU product."""
    devices: str = ""
    """RDMA resource that each node requests."""
    nccl: Version | None = None
    """Version of NCCL in the image; None if unknown."""


def effective_entries(name: str, facts: NodeFacts) -> list[FabricValue]:
    """Return the entries that the fabric ``name`` sets on nodes with these facts."""
    return [entry for entry in _chosen(name, facts) if _fits(entry, facts.nccl)]


def too_new(name: str, facts: NodeFacts) -> list[FabricValue]:
    """Return the entries that the fabric sets only if the image has a newer NCCL."""
    return [entry for entry in _chosen(name, facts) if entry.since and not _fits(entry, facts.nccl)]


def _chosen(name: str, facts: NodeFacts) -> Iterator[FabricValue]:
    found = profiles(name)
    is_alone = len(found) == 1
    for profile in found:
        for entry in profile.entries:
            is_of_machine = not entry.machines or any(fnmatchcase(facts.machine, kind) for kind in entry.machines)
            if entry.emission in SET and is_of_machine and entry.alone in {None, is_alone}:
                yield entry


def _fits(entry: FabricValue, nccl: Version | None) -> bool:
    if entry.before:
        return nccl is not None and nccl < version(entry.before)
    return not entry.since or nccl is None or nccl >= version(entry.since)


RACKS: Final = "gb200-mnnvl"
RACK_PRODUCTS: Final = ("GB200", "GB300")
"""Substrings of the names of GPUs that such racks contain."""

MACHINES: Final[Sequence[tuple[str, str]]] = (
    ("p6e-gb200.*", "gb200-mnnvl+aws-efa"),
    ("p4d*.24xlarge", "aws-efa"),
    ("p5*.48xlarge", "aws-efa"),
    ("p6-b[23]00.48xlarge", "aws-efa"),
    ("a3-highgpu-8g", "gcp-tcpx"),
    ("a3-megagpu-8g", "gcp-tcpxo"),
    ("a3-ultragpu-8g", "gcp-gib"),
    ("a4-highgpu-8g", "gcp-gib"),
    ("a4x-highgpu-4g", "gb200-mnnvl+gcp-gib"),
    ("a4x-maxgpu-4g*", "gb200-mnnvl+gcp-gib-dra"),
    ("Standard_ND96*_A100_v4", "azure-ib"),
    ("Standard_ND96is*_H[12]00_v5", "azure-ib"),
    ("BM.GPU4.8", "oci-roce"),
    ("BM.GPU.B4.8", "oci-roce"),
    ("BM.GPU.A100-v2.8", "oci-roce"),
    ("BM.GPU.[HB][123]00.8", "oci-roce"),
    ("gd-8x*ib-*", "coreweave-ib"),
    ("gb200-4x*", "gb200-mnnvl+coreweave-ib"),
    ("gb300-4x*", "gb200-mnnvl+coreweave-roce"),
)
"""Machine types, with ``*`` as wildcard, and the network that their cloud provides."""
ACCELERATORS: Final = {
    "nvidia-h100-80gb": "gcp-tcpx",
    "nvidia-h100-mega-80gb": "gcp-tcpxo",
    "nvidia-h200-141gb": "gcp-gib",
    "nvidia-b200": "gcp-gib",
    "nvidia-gb200": "gb200-mnnvl+gcp-gib",
}
"""GKE's label ``cloud.google.com/gke-accelerator``."""
WHOLE_MACHINES: Final = frozenset({4, 8})
"""GPU counts of the whole machines above."""
DEVICES: Final[Sequence[tuple[str, str]]] = (
    ("vpc.amazonaws.com/efa", "aws-efa"),
    ("nvidia.com/rdma-vf", "oci-roce"),
    ("*roce*", "roce"),
    ("*", "ib"),
)
"""Names of RDMA resources; ``ib`` and ``roce`` set the same."""


@dataclass(frozen=True, slots=True)
class FabricChoice:
    """A fabric and the reason for its choice."""

    name: str
    key: str
    """Key of the job that determined the fabric."""
    reason: str


def choose(facts: NodeFacts) -> FabricChoice:
    """Return the fabric for nodes with these facts, or ``none`` if no rule matches."""
    for rule in RULES:
        if choice := rule(facts):
            return choice
    return FabricChoice(NONE, "rdma", "no device or label identifies the network of the nodes")


def _without_gpus(facts: NodeFacts) -> FabricChoice | None:
    return None if facts.gpus else FabricChoice("gloo-cpu", "gpus", "no GPU, so collectives are gloo's")


def _one_node(facts: NodeFacts) -> FabricChoice | None:
    return FabricChoice("single-node-nvlink", "nnodes", "one node needs no network") if facts.nodes == 1 else None


def _machine(facts: NodeFacts) -> FabricChoice | None:
    """Match whole machines only.

    The fabric uses all devices of a machine, and other jobs may share a machine with a smaller job.
    """
    if facts.gpus not in WHOLE_MACHINES:
        return None
    found = [name for pattern, name in MACHINES if fnmatchcase(facts.machine, pattern)]
    return FabricChoice(found[0], "nodeSelector", f"the network of {facts.machine}") if found else None


def _accelerator(facts: NodeFacts) -> FabricChoice | None:
    """Match whole machines only. Smaller machines have the same GPUs but none of these networks."""
    if facts.accelerator not in ACCELERATORS or facts.gpus not in WHOLE_MACHINES:
        return None
    return FabricChoice(ACCELERATORS[facts.accelerator], "nodeSelector", f"the network of {facts.accelerator}")


def _multi_node_nvlink(facts: NodeFacts) -> FabricChoice | None:
    if not any(product in facts.gpu_type for product in RACK_PRODUCTS):
        return None
    name = JOINT.join([RACKS, *_of_devices(facts.devices)])
    return FabricChoice(name, "gpuType", f"{facts.gpu_type} is joined by NVLink within its rack")


def _devices(facts: NodeFacts) -> FabricChoice | None:
    found = _of_devices(facts.devices)
    return FabricChoice(found[0], "rdma", f"{facts.devices} is an RDMA device") if found else None


def _of_devices(resource: str) -> list[str]:
    return [name for pattern, name in DEVICES if resource and fnmatchcase(resource, pattern)][:1]


RULES: Final[Sequence[Callable[[NodeFacts], FabricChoice | None]]] = (
    _without_gpus,
    _one_node,
    _machine,
    _accelerator,
    _multi_node_nvlink,
    _devices,
)
"""Rules in order of priority; the first that returns a choice decides."""
