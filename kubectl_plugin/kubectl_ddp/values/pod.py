"""Values of a job that are fields of its pods, in Kubernetes' notation: volumes, and requirements on their nodes.

Requirements beyond cores and memory are GPU type, MIG slices, RDMA devices, and placement.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from ddp_trainer.common.constants import Path
from kubectl_ddp.values.parsers import QUALIFIED, SUBDOMAIN, Raw, Schema, text
from kubectl_ddp.values.quantity import BadValue, Memory


class VolumeSource(StrEnum):
    """Kind of a mount's volume."""

    CLAIM = "pvc"
    CONFIG_MAP = "configmap"
    EMPTY = "emptydir"


NOTATION: Final = "pvc=NAME:/PATH[:ro], configmap=NAME:/PATH or emptydir=SIZE:/PATH"
RESERVED_PATHS: Final = (
    Path.RUN_DIR,
    Path.SECRET,
    Path.CHECKPOINT_DIR,
    Path.COMPILE_CACHE,
    Path.CODE,
    Path.CODE_ARCHIVE,
    Path.RUNTIME,
    Path.PACKAGES,
    Path.SHARED_MEMORY,
    Path.TERMINATION_LOG,
)
"""Paths that the launcher uses itself."""
SYSTEM: Final = ("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr", "/var", "/var/run")
"""System paths; a volume there would hide the image's own programs."""


@dataclass(frozen=True, slots=True)
class Mount:
    """One volume at one path."""

    source: VolumeSource
    name: str
    """Name of the claim or the ConfigMap; the size for an empty directory."""
    path: str
    read_only: bool = False

    PATTERN = r"(?P<source>[A-Za-z]+)=(?P<name>[^:]+):(?P<path>[^:]+)(:(?P<manner>[^:]*))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``pvc=NAME:/PATH[:ro]``, ``configmap=NAME:/PATH`` or ``emptydir=SIZE:/PATH``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(f"'{text}' mounts nothing", hint=f"Write {NOTATION}.")
        if match["source"].lower() == "hostpath":
            raise BadValue(
                f"'{text}' is a hostPath volume, which Pod Security 'restricted' forbids",
                hint="Put the data into a PersistentVolumeClaim: pvc=NAME:/PATH.",
            )
        if match["source"] not in set(VolumeSource):
            raise BadValue(f"'{match['source']}' is not a kind of volume", hint=f"Write {NOTATION}.")
        if match["manner"] not in {None, "ro", "rw"}:
            raise BadValue(f"'{text}' ends in '{match['manner']}'", hint="Write ':ro' to mount it read-only.")
        source = VolumeSource(match["source"])
        if source is VolumeSource.CONFIG_MAP and match["manner"] == "rw":
            raise BadValue(f"'{text}' requests write access to a ConfigMap", hint="Remove ':rw'.")
        return cls(source, _named(source, match["name"]), mount_path(match["path"]), match["manner"] == "ro")

    def __str__(self) -> str:
        return f"{self.source}={self.name}:{self.path}{':ro' if self.read_only else ''}"


@dataclass(frozen=True, slots=True)
class SecretFiles:
    """Entries of a Secret as read-only files."""

    secret: str
    path: str

    PATTERN = rf"({SUBDOMAIN}):([^:]+)"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``NAME:/PATH``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(f"'{text}' mounts no Secret", hint="Write 'NAME:/PATH', as in 'hub:/secrets/hub'.")
        secret, _, path = text.partition(":")
        return cls(secret, mount_path(path))

    def __str__(self) -> str:
        return f"{self.secret}:{self.path}"


@dataclass(frozen=True, slots=True)
class CodeClaim:
    """Directory of a claim that holds the code."""

    claim: str
    path: str
    """Path in the claim, without a leading slash; empty for its root."""

    PATTERN = rf"({SUBDOMAIN}):([^:]+)"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``CLAIM:PATH``. Raises BadValue."""
        claim, _, path = text.partition(":")
        if not re.fullmatch(cls.PATTERN, text) or ".." in path.split("/"):
            raise BadValue(
                f"'{text}' is not a directory of a claim", hint="Write 'CLAIM:PATH', as in 'projects:vision'."
            )
        return cls(claim, posixpath.normpath(f"/{path}").strip("/"))

    def __str__(self) -> str:
        return f"{self.claim}:{self.path or '/'}"


def mount_path(text: str) -> str:
    """Return a normalized mount path; it must be absolute and must not hide system paths. Raises BadValue."""
    if not text.startswith("/") or ".." in text.split("/"):
        raise BadValue(f"'{text}' is not an absolute path", hint="Begin it with '/', as in '/data'.")
    path = "/" + posixpath.normpath(text).strip("/")
    if path in SYSTEM:
        raise BadValue(f"A mount at '{path}' would hide the image's own files", hint="Choose a path such as '/data'.")
    return path


def _named(source: VolumeSource, name: str) -> str:
    if source is VolumeSource.EMPTY:
        return str(Memory.parse(name))
    if not re.fullmatch(rf"(?=.{{1,253}}$){SUBDOMAIN}", name):
        raise BadValue(f"'{name}' is not a valid object name", hint="Use lower case letters, digits, '-' and '.'.")
    return name


NONE: Final = "none"
LARGEST_ID: Final = 2**31 - 1
DEEPEST: Final = 32
"""Largest depth of a nested object; that of a pod is about 15."""


class PullPolicy(StrEnum):
    """Pull policy of an image."""

    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class RuntimeMount(StrEnum):
    """Way in which the files of the runtime image reach a pod."""

    IMAGE = "image"
    """A volume of the image."""
    COPY = "copy"
    """An init container that copies them into an empty volume."""


@dataclass(frozen=True, slots=True)
class UnixId:
    """Parser for a user or group id, or ``none`` for a pod without one."""

    least: int

    def __call__(self, raw: Raw) -> int | str:
        word = text(raw)
        if word == NONE:
            return NONE
        if not re.fullmatch(r"\d{1,10}", word) or not self.least <= int(word) <= LARGEST_ID:
            root = "; Pod Security 'restricted' forbids root" if word == "0" else ""
            raise BadValue(
                f"'{word}' is not an id from {self.least} to {LARGEST_ID}{root}",
                hint=f"Write a number, or '{NONE}' to leave the choice to the platform.",
            )
        return int(word)

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        pattern = rf"^(\d{{1,10}}|{NONE})$"
        return {"type": ["integer", "string"], "minimum": self.least, "maximum": LARGEST_ID, "pattern": pattern}


@dataclass(frozen=True, slots=True)
class NestedObject:
    """Parser for a nested object: a map, or its text in YAML."""

    keys: tuple[str, ...]
    """Keys that it may have."""
    has_null: bool = False
    """True if null is a value, which deletes in a patch."""

    def __call__(self, raw: Raw) -> Mapping[str, Any]:
        value = _from_yaml(raw) if isinstance(raw, str) else raw
        if not isinstance(value, Mapping) or not value:
            raise BadValue(f"'{raw}' is not a map of {', '.join(self.keys)}", hint="Write it as in a pod.")
        for key in value:
            if key not in self.keys:
                raise BadValue(f"'{key}' is not one of {', '.join(self.keys)}", hint="Write it as in a pod.")
        return {key: self._checked(item, key, 0) for key, item in value.items()}

    def _checked(self, value: Any, path: str, depth: int) -> Any:
        """Return a value with copied maps and lists, and numbers with a fraction as text, as quantities are."""
        if depth > DEEPEST:
            raise BadValue(f"{path[:80]}... is nested too deeply", hint="Write it as in a pod.")
        match value:
            case Mapping():
                return {str(key): self._checked(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
            case list() | tuple():
                return [self._checked(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
            case None if not self.has_null:
                raise BadValue(f"{path} has no value", hint="Give it one, or leave it out.")
            case None | bool() | int():
                return value
        return text(value)

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        properties: dict[str, Any] = {key: {} for key in self.keys}
        return {"type": ["object", "string"], "properties": properties, "additionalProperties": False}


AFFINITY: Final = NestedObject(("nodeAffinity", "podAffinity", "podAntiAffinity"))
POD_TEMPLATE: Final = NestedObject(("metadata", "spec"), has_null=True)


def _from_yaml(text: str) -> Any:
    import yaml  # noqa: PLC0415 - few jobs have such a value, and help and completion do without

    from kubectl_ddp.util.yaml_text import plain_value  # noqa: PLC0415

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if node is None else plain_value(node)
    except (yaml.YAMLError, RecursionError) as error:
        first = str(getattr(error, "problem", None) or "it cannot be read")
        raise BadValue(f"it is not valid YAML: {first}", hint="Write it as in a pod.") from None


GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""Node label set by NVIDIA's GPU Feature Discovery."""

MIG_PROFILE: Final = r"[1-7]g\.\d{1,3}gb(\.me(\.all)?|\.gfx)?"
"""Pattern of profiles as printed by ``nvidia-smi mig -lgip``; a ``+`` becomes a dot in a resource's name."""

LEVELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "kubernetes.io/hostname")
"""Labels with the same meaning on every cluster, widest first; a node is the narrowest level of Kueue's topology."""


class Placement(StrEnum):
    """Kind of placement constraint between the nodes of a job."""

    PACK = "pack"
    """All nodes in one domain."""
    SPREAD = "spread"
    """Nodes evenly over all domains."""
    REPLICA = "replica"
    """Each copy of the model within one domain, which may differ between copies."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Placement constraint by a node label; nodes with the same value form a domain."""

    placement: Placement
    key: str
    """Node label, such as ``topology.kubernetes.io/zone``."""
    required: bool = False
    """True to wait until the constraint can be satisfied."""

    PATTERN = rf"(?P<placement>pack|spread|replica)=(?P<key>{QUALIFIED})(:(?P<force>\w+))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``pack=LABEL``, ``spread=LABEL`` or ``replica=LABEL``.

        ``pack`` and ``spread`` accept the suffix ``:required`` or ``:preferred``; ``replica`` is always required.

        Raises:
            BadValue: If the text has another form.
        """
        match = re.fullmatch(cls.PATTERN, text)
        is_replica = match is not None and match["placement"] == Placement.REPLICA
        if match is None or match["force"] not in {None, "required", None if is_replica else "preferred"}:
            raise BadValue(
                f"'{text}' is not a placement constraint",
                hint="Write pack=LABEL or spread=LABEL, with ':required' appended to wait until it can be met, or "
                "replica=LABEL.",
            )
        return cls(Placement(match["placement"]), match["key"], is_replica or match["force"] == "required")

    def __str__(self) -> str:
        shows_required = self.required and self.placement is not Placement.REPLICA
        return f"{self.placement}={self.key}{':required' if shows_required else ''}"


@dataclass(frozen=True, slots=True)
class Rdma:
    """RDMA devices per node, by the resource name of the cluster's device plugin."""

    resource: str
    count: int = 1

    PATTERN = rf"(?P<resource>(?=[^=]*/){QUALIFIED})(=(?P<count>[1-9]\d{{0,2}}))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``RESOURCE`` or ``RESOURCE=COUNT``, such as ``rdma/ib=8``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(
                f"'{text}' names no RDMA resource",
                hint="Write RESOURCE or RESOURCE=COUNT, as in 'rdma/ib=8'; 'kubectl describe node' shows the names.",
            )
        return cls(match["resource"], int(match["count"] or 1))

    def __str__(self) -> str:
        return f"{self.resource}={self.count}"


def is_lower_level(key: str, than: str) -> bool:
    """Return True if domains of one label are known to lie within those of another, as for standard labels."""
    if key == LEVELS[-1]:
        return than != key
    return key in LEVELS and than in LEVELS and LEVELS.index(key) > LEVELS.index(than)
