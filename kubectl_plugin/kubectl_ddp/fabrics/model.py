"""Profiles: what a fabric adds to a job, what it needs of the cluster, and what stands against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final


class EmitPolicy(StrEnum):
    """How a value comes to a job."""

    SYSTEM = "system"
    """Set: what NCCL's guide counts as configuration of the system, or what Kubernetes needs to know."""
    VENDOR = "vendor"
    """Set: the recipe of the machines' vendor, perhaps with variables that NCCL documents as debugging."""
    OFF = "off"
    """Not set: a value that the site has to know, or that a recipe has and a job does without."""
    CONTAINER = "container"
    """Not set: it depends on the pod, and is found out where the pod runs."""


SET: Final = frozenset({EmitPolicy.SYSTEM, EmitPolicy.VENDOR})


class Target(StrEnum):
    """Beginnings of the keys that no key of a job file stands for; what follows the dot is a name."""

    RESOURCE = "resource"
    """Amount of a resource, requested and limited."""
    ANNOTATION = "annotation"
    """Of the pods."""
    NODE_LABEL = "nodeLabel"
    """Label that a machine must have, with any value."""
    LOAD = "load"
    """Script of the vendor, read by the shell that starts the launcher."""
    LIBRARY_PATH = "libraryPath"
    """Directories put before LD_LIBRARY_PATH by the same shell."""
    CLAIM = "claim"
    """Device class and count, or all, of a ResourceClaimTemplate; every pod claims what it says."""
    COMPUTE_DOMAIN = "computeDomain"
    """Number of nodes of a ComputeDomain; every pod claims a channel of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One value."""

    key: str
    """Dotted key of the job file, as in ``env.NCCL_NET``, or one that begins with a :class:`Target`."""
    value: str
    reason: str
    source: str
    """Where it is written."""
    emission: EmitPolicy = EmitPolicy.SYSTEM
    since: str = ""
    """First version of NCCL that has it; set unless the image is known to have an older one."""
    before: str = ""
    """First version of NCCL that must not have it; set only if the image is known to have an older one."""
    machines: tuple[str, ...] = ()
    """Types of machines for which it holds, with ``*``; all when empty."""
    alone: bool | None = None
    """Only when the profile stands alone, only when it stands beside another; ``None`` for both."""

    @property
    def target(self) -> str:
        """The key's first word."""
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        """The rest of the key."""
        return self.key.partition(".")[2]

    @property
    def why(self) -> str:
        """Reason and source."""
        return f"{self.reason} ({self.source})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the cluster or the image must bring along."""

    message: str
    source: str
    is_grave: bool = False
    """Said at every submission: the job ends at its start, or crawls, without it."""
    unless: str = ""
    """Variable of the job that says that it is there."""
    packages: tuple[str, ...] = ()
    """Debian packages that the image must hold; the target ``cuda`` of our Dockerfile does."""
    is_vendors: bool = False
    """The image must hold software that only the machines' vendor distributes; ours does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictingVariable:
    """A variable that stands against the fabric."""

    name: str
    """With ``*`` for all that begin so."""
    reason: str
    source: str
    value: str = "*"
    """Only such a value, with ``*``."""

    def matches(self, name: str, value: str | None) -> bool:
        """Whether a variable of a job is meant; ``None`` is a value that is not known.

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
    """Beginnings of the RDMA resources of which a node must ask for one; a fabric without RDMA devices has none."""
    largest: int | None = None
    """Most nodes that it joins."""
    has_gpus: bool = True
    is_beside: bool = False
    """Joins some nodes of a job; another fabric may join the rest."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """How the devices are asked for on each type of machine, for messages."""
