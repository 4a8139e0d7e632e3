"""Data model of fabrics: additions to a job, requirements on the cluster, and conflicting variables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final


class EmitPolicy(StrEnum):
    """Origin of a value, and whether the fabric sets it."""

    SYSTEM = "system"
    """Set: system configuration by NCCL's guide, or a value that Kubernetes requires."""
    VENDOR = "vendor"
    """Set: part of the machine vendor's recipe, possibly with variables that NCCL documents as debugging."""
    OFF = "off"
    """Not set: a site-specific value, or a value of a recipe that jobs do not need."""
    CONTAINER = "container"
    """Not set: depends on the pod, and is determined inside the pod."""


SET: Final = frozenset({EmitPolicy.SYSTEM, EmitPolicy.VENDOR})


class Target(StrEnum):
    """Prefixes of keys without a counterpart in the job file. The part after the dot is a name."""

    RESOURCE = "resource"
    """Amount of a resource, requested and limited."""
    ANNOTATION = "annotation"
    """Annotation of the pods."""
    NODE_LABEL = "nodeLabel"
    """Label that a machine must have, with any value."""
    LOAD = "load"
    """Script of the vendor, read by the shell that starts the launcher."""
    LIBRARY_PATH = "libraryPath"
    """Directories put before LD_LIBRARY_PATH by the same shell."""
    CLAIM = "claim"
    """Device class and count (or all) of a ResourceClaimTemplate; every pod claims these devices."""
    COMPUTE_DOMAIN = "computeDomain"
    """Number of nodes of a ComputeDomain; every pod claims one of its channels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value that a fabric sets or documents."""

    key: str
    """Dotted key of the job file, such as ``env.NCCL_NET``, or a key that starts with a :class:`Target`."""
    value: str
    reason: str
    source: str
    """Address of the document that specifies the value."""
    emission: EmitPolicy = EmitPolicy.SYSTEM
    since: str = ""
    """First version of NCCL that supports it. The value is set unless the image is known to have an older NCCL."""
    before: str = ""
    """First version of NCCL that must not have it. The value is set only if the image is known to have an older NCCL.
    """
    machines: tuple[str, ...] = ()
    """Machine types that it applies to, with ``*`` as wildcard; empty for all."""
    alone: bool | None = None
    """True: only if the profile is the job's only one. False: only in combination with another. None: both."""

    @property
    def target(self) -> str:
        """Part of the key before the first dot."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """Part of the key after the first dot."""
        return self.key.partition(".")[2]

    @property
    def why(self) -> str:
        """Reason and source."""
        return f"{self.reason} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Requirement on the cluster or the image."""

    message: str
    source: str
    is_grave: bool = False
    """Warn at every submission: without it, the job fails at its start or runs very slowly."""
    unless: str = ""
    """Variable of the job that declares the requirement as met."""
    packages: tuple[str, ...] = ()
    """Debian packages that the image must contain; the target ``cuda`` of our Dockerfile contains them."""
    is_vendors: bool = False
    """True if the image needs software that only the machines' vendor distributes; our image does not contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingVariable:
    """Variable that conflicts with the fabric."""

    name: str
    """Name of the variable, with ``*`` as wildcard."""
    reason: str
    source: str
    value: str = "*"
    """Conflicting value, with ``*`` as wildcard."""

    def matches(self, name: str, value: str | None) -> bool:
        """Return True if a job's variable conflicts; a ``value`` of None means that it is unknown.

        >>> ConflictingVariable(name="FI_*", reason="", source="").matches("FI_PROVIDER", None)
        True
        """
        is_value = self.value == "*" if value is None else fnmatchcase(value, self.value)
        return is_value and fnmatchcase(name, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One fabric."""

    name: str
    summary: str
    source: str
    entries: tuple[Entry, ...] = ()
    needs: tuple[Need, ...] = ()
    refusals: tuple[ConflictingVariable, ...] = ()
    devices: tuple[str, ...] = ()
    """Prefixes of RDMA resources; a node must request at least one. Empty for a fabric without RDMA devices."""
    largest: int | None = None
    """Maximum number of nodes."""
    has_gpus: bool = True
    is_beside: bool = False
    """True if it joins only some nodes of a job and another fabric may join the rest."""

    @property
    def devices_of_machines(self) -> dict[str, str]:
        """Machine type → request for all of its RDMA devices."""
        return {machine: entry.value for entry in self.entries if entry.key == "rdma" for machine in entry.machines}
