"""Catalog of all fabrics by name, read from ``profiles/*.yaml``, and the choice of one for a job's machines.

A :class:`Profile` holds additions to a job, requirements on the cluster, and conflicting variables. A string in a list
of a profile's file is the key of one or several entries, needs or refusals in ``shared.yaml``. A source is a key of
``sources.yaml``, ``env`` for the paragraph of the variable in NCCL's guide, or a URL.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeAlias

from ddp_trainer.common.lint import env
from kubectl_ddp.errors import suggest_known


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
class FabricValue:
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
class FabricRequirement:
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
    entries: tuple[FabricValue, ...] = ()
    needs: tuple[FabricRequirement, ...] = ()
    refusals: tuple[ConflictingVariable, ...] = ()
    devices: tuple[str, ...] = ()
    """Prefixes of RDMA resources; a node must request at least one. Empty for a fabric without RDMA devices."""
    largest: int | None = None
    """Maximum number of nodes."""
    has_gpus: bool = True
    is_beside: bool = False
    """True if it joins only some nodes of a job and another fabric may join the rest."""

    @property
    def devices_by_machine_type(self) -> dict[str, str]:
        """Machine type → request for all of its RDMA devices."""
        return {machine: entry.value for entry in self.entries if entry.key == "rdma" for machine in entry.machines}


VENDORS: Final = ("plain", "aws", "google", "azure", "oracle", "neoclouds", "mnnvl")
"""Files of profiles, in the order of the documentation."""
AUTO: Final = "auto"
"""Name for automatic choice from the job's other settings."""
NONE: Final = "none"
"""Name for no fabric: nothing is added."""
JOINT: Final = "+"
"""Separator between the fabric within racks and the fabric between racks."""

Fields = dict[str, Any]


@functools.cache
def fabrics() -> Mapping[str, Profile]:
    """Return all fabrics by name."""
    return {item["name"]: _profile(**item) for vendor in VENDORS for item in _data(vendor)}


def profiles(name: str) -> tuple[Profile, ...]:
    """Return the profiles for a name such as ``ib`` or ``gb200-mnnvl+ib``; an empty tuple for ``none``.

    Raises:
        LookupError: If a part of the name is unknown, repeated, or cannot be combined with another.
    """
    if name == NONE:
        return ()
    found = [_named(part) for part in name.split(JOINT)]
    between = [profile.name for profile in found if not profile.is_beside]
    if len(between) > 1:
        raise LookupError(f"'{name}' names {' and '.join(between)}, and the nodes of a job have one of them")
    if len({profile.name for profile in found}) < len(found):
        raise LookupError(f"'{name}' names a fabric twice")
    return tuple(found)


def suggest_name(name: str) -> str:
    """Return a sentence that suggests valid names in place of an unknown one."""
    return suggest_known(name, [*fabrics(), AUTO, NONE])


def _named(name: str) -> Profile:
    if name not in fabrics():
        raise LookupError(f"'{name}' is not a fabric")
    return fabrics()[name]


@functools.cache
def _data(file: str) -> Any:
    from kubectl_ddp.util.yaml_text import read_yaml  # noqa: PLC0415 - most commands need no fabric

    return read_yaml(Path(__file__).parent / "profiles" / f"{file}.yaml")


def _profile(
    *,
    source: str,
    entries: Iterable[Any] = (),
    needs: Iterable[Any] = (),
    refusals: Iterable[Any] = (),
    devices: Iterable[str] = (),
    **rest: Any,
) -> Profile:
    return Profile(
        source=_source(source, ""),
        entries=tuple(entry for item in _flat(entries) for entry in _entries(**item)),
        needs=tuple(FabricRequirement(**item | {"source": _source(item["source"], "")}) for item in _flat(needs)),
        refusals=tuple(refusal for item in _flat(refusals) for refusal in _variable_conflicts(**item)),
        devices=tuple(devices),
        **rest,
    )


def _flat(items: Iterable[Any]) -> Iterator[Fields]:
    """Yield the items of a list, with the items that its words stand for."""
    for item in items:
        named = _data("shared")[item] if isinstance(item, str) else item
        yield from _flat(named) if isinstance(named, list) else (named,)


def _entries(
    *,
    key: str = "",
    value: Any = "",
    values: Mapping[str, Any] | None = None,
    by_machine: Mapping[str, Any] | None = None,
    machines: Iterable[str] = (),
    source: str,
    emission: str = EmitPolicy.SYSTEM,
    **rest: Any,
) -> Iterator[FabricValue]:
    """Yield the entry of ``key``, one for each of ``values``, or one for each machine of ``by_machine``."""
    rows = [(name, content, tuple(machines)) for name, content in (values or {key: value}).items()]
    if by_machine:
        rows = [(key, content, (machine,)) for machine, content in by_machine.items()]
    for name, content, only in rows:
        yield FabricValue(
            key=name,
            value=_text(content),
            machines=only,
            source=_source(source, name.partition(".")[2]),
            emission=EmitPolicy(emission),
            **rest,
        )


def _variable_conflicts(
    *, name: str = "", names: Iterable[str] = (), source: str, **rest: Any
) -> Iterator[ConflictingVariable]:
    for variable in names or (name,):
        yield ConflictingVariable(name=variable, source=_source(source, variable), **rest)


def _text(value: Any) -> str:
    """Return a value as a job file has it: words with commas between them, objects as JSON."""
    if isinstance(value, list):
        is_words = all(isinstance(item, str) for item in value)
        return ",".join(value) if is_words else json.dumps(value, separators=(",", ":"))
    return str(value)


def _source(source: str, variable: str) -> str:
    if source == "env":
        return env(variable)
    return source if source.startswith("https://") else str(_data("sources")[source])


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
FULL_MACHINE_GPUS: Final = frozenset({4, 8})
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
    if facts.gpus not in FULL_MACHINE_GPUS:
        return None
    found = [name for pattern, name in MACHINES if fnmatchcase(facts.machine, pattern)]
    return FabricChoice(found[0], "nodeSelector", f"the network of {facts.machine}") if found else None


def _accelerator(facts: NodeFacts) -> FabricChoice | None:
    """Match whole machines only. Smaller machines have the same GPUs but none of these networks."""
    if facts.accelerator not in ACCELERATORS or facts.gpus not in FULL_MACHINE_GPUS:
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
