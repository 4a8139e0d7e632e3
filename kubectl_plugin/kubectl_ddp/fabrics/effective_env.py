"""Selection of the values of a fabric that apply to a job's machines and version of NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kubectl_ddp.fabrics.model import SET, Entry
from kubectl_ddp.fabrics.registry import profiles
from kubectl_ddp.fabrics.version import Version, version


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
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


def effective_entries(name: str, facts: Facts) -> list[Entry]:
    """Return the entries that the fabric ``name`` sets on nodes with these facts."""
    return [entry for entry in _chosen(name, facts) if _fits(entry, facts.nccl)]


def too_new(name: str, facts: Facts) -> list[Entry]:
    """Return the entries that the fabric sets only if the image has a newer NCCL."""
    return [entry for entry in _chosen(name, facts) if entry.since and not _fits(entry, facts.nccl)]


def _chosen(name: str, facts: Facts) -> Iterator[Entry]:
    found = profiles(name)
    is_alone = len(found) == 1
    for profile in found:
        for entry in profile.entries:
            is_of_machine = not entry.machines or any(fnmatchcase(facts.machine, kind) for kind in entry.machines)
            if entry.emission in SET and is_of_machine and entry.alone in {None, is_alone}:
                yield entry


def _fits(entry: Entry, nccl: Version | None) -> bool:
    if entry.before:
        return nccl is not None and nccl < version(entry.before)
    return not entry.since or nccl is None or nccl >= version(entry.since)
