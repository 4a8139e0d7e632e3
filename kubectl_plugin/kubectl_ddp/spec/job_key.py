"""Declaration of a key of a job file, and the origin of its value.

:func:`key` makes a field of :class:`~kubectl_ddp.spec.model.JobSpec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeAlias, TypeVar, dataclass_transform

from kubectl_ddp.values.parsers import ChoiceParser, Raw, Schema


class OriginKind(StrEnum):
    """Sources, strongest first."""

    FLAG = "flag"
    FILE = "file"
    FABRIC = "fabric"
    CONFIG = "config"
    """The user's own defaults."""
    PRESET = "preset"
    ENVIRONMENT = "environment"
    RULE = "rule"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a value."""

    kind: OriginKind
    place: str = ""
    """Flag, file with line, preset, variable, or the field that a rule used."""
    reason: str = ""
    """Reason why a preset or a rule sets it."""

    def __str__(self) -> str:
        """Return a description such as ``preset gpu-nccl: failures print nothing otherwise``."""
        where = (
            self.place
            if self.kind in {OriginKind.FLAG, OriginKind.FILE, OriginKind.CONFIG}
            else f"{self.kind} {self.place}".rstrip()
        )
        return f"{where}: {self.reason}" if self.reason else where


@dataclass(frozen=True, slots=True)
class Given:
    """Raw value with its origin."""

    raw: Raw
    origin: Origin


Layer: TypeAlias = Mapping[str, Given]
"""Values of one source by dotted key, such as ``nnodes`` or ``env.NCCL_DEBUG``."""


T = TypeVar("T")

KEYS: Final = "keys"
"""Entry of a field's metadata: its keys."""


class Group(StrEnum):
    """Heading of keys in documents."""

    JOB = "Job"
    PROGRAM = "Program"
    SIZE = "Size"
    ENVIRONMENT = "Image and environment"
    LIFETIME = "Restarts and lifetime"
    PLACEMENT = "Engine and placement"
    VOLUMES = "Volumes"
    QUEUE = "Queue and gang"
    NETWORK = "GPUs and network"
    ACCESS = "Access"
    POD = "Pod"


class Completion(StrEnum):
    """Source of the values that the tab key offers, besides the words of a closed set."""

    NONE = ""
    FILES = "files"
    NAMESPACES = "namespaces"
    PRESETS = "presets"
    FABRICS = "fabrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One key of a job file."""

    name: str
    """The key, in camelCase."""
    parse: Callable[[Raw], Any]
    """Parser for a flag's text or a value of a file or JSON. Raises BadValue."""
    schema: Schema
    """JSON schema of the value in a job file."""
    help: str
    metavar: str
    example: str
    """Value in a job file, in YAML."""
    group: Group
    default: Raw
    """Default as in a job file; None without one."""
    otherwise: str
    """Origin of a value that is neither given nor constant; empty if ``default`` or nothing applies."""
    flag: str
    """Flag, or the name of the positional argument."""
    completion: Completion
    is_cluster_only: bool
    """True if a job on this machine ignores it: it selects machines, or only a cluster gives it to a pod."""
    attribute: str = ""
    """Name in JobSpec; ``program`` for the three keys of the program."""

    @property
    def is_map(self) -> bool:
        """True if given entry by entry, ``KEY=VALUE``; the entries of all sources are merged."""
        return self.schema.get("type") == "object"

    @property
    def is_list(self) -> bool:
        """True if the flag can be repeated; a stronger source replaces the whole list."""
        return self.schema.get("type") == "array"

    @property
    def is_object(self) -> bool:
        """True for a nested object of Kubernetes; a flag has it as YAML."""
        return "object" in self.schema.get("type", ()) and not self.is_map

    @property
    def choices(self) -> tuple[str, ...]:
        """All values; empty if they are not a closed set."""
        return tuple(self.schema.get("enum", ()))

    @property
    def is_flag(self) -> bool:
        """False for a key that the command line sets by positional words."""
        return self.flag.startswith("--")


def field_of(
    name: str,
    group: Group,
    parse: Callable[[Raw], Any],
    summary: str,
    metavar: str = "",
    *,
    example: str,
    default: Raw = None,
    otherwise: str = "",
    flag: str = "",
    completion: Completion = Completion.NONE,
    schema: Schema | None = None,
    cluster_only: bool = False,
) -> Field:
    """Return a key.

    Args:
        name: The key, in camelCase.
        group: Heading in documents.
        parse: Parser; its attribute ``schema`` is the JSON schema, unless ``schema`` is given.
        summary: Description in one line.
        metavar: Notation of the value; made from the members of a closed set if empty.
        example: Value in a job file, in YAML.
        default: Default as in a job file.
        otherwise: Origin of a value that is not given, such as another key.
        flag: Flag; made from the key if empty.
        completion: Source of values for the tab key.
        schema: JSON schema, for a parser without one.
        cluster_only: Whether a job on this machine ignores the key.
    """
    return Field(
        name=name,
        parse=parse,
        schema=getattr(parse, "schema", {}) if schema is None else schema,
        help=summary,
        metavar=metavar or ("|".join(parse.members) if isinstance(parse, ChoiceParser) else ""),
        example=example,
        group=group,
        default=default,
        otherwise=otherwise,
        flag=flag or f"--{to_kebab_case(name)}",
        completion=completion,
        is_cluster_only=cluster_only,
    )


def key(name: str, group: Group, parse: Callable[[Raw], Any], *words: str, **more: Any) -> Any:
    """Return a field of JobSpec with one key, and the parsed default of that key; see :func:`field_of`."""
    declared = field_of(name, group, parse, *words, **more)
    metadata = {KEYS: (declared,)}
    if declared.is_map:
        return field(default_factory=dict, metadata=metadata)
    if "default" not in more:
        return field(metadata=metadata)
    unset = () if declared.is_list else None
    return field(default=unset if declared.default in (None, []) else parse(declared.default), metadata=metadata)


def keys(*declared: Field) -> Any:
    """Return a required field of JobSpec with several keys, of which a job has one."""
    return field(metadata={KEYS: declared})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(key, keys))
def key_dataclass(cls: type[T]) -> type[T]:
    """Turn a class into a dataclass whose fields are made by :func:`key`."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


def to_kebab_case(name: str) -> str:
    """Return a name in kebab-case.

    >>> to_kebab_case("maxRestarts")
    'max-restarts'
    """
    return re.sub(r"[A-Z]", lambda letter: f"-{letter[0].lower()}", name)
