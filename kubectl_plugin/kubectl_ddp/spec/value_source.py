"""Origin of each value of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kubectl_ddp.values.parsers import Raw


class Kind(StrEnum):
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

    kind: Kind
    place: str = ""
    """Flag, file with line, preset, variable, or the field that a rule used."""
    reason: str = ""
    """Reason why a preset or a rule sets it."""

    def __str__(self) -> str:
        """Return a description such as ``preset gpu-nccl: failures print nothing otherwise``."""
        where = self.place if self.kind in {Kind.FLAG, Kind.FILE, Kind.CONFIG} else f"{self.kind} {self.place}".rstrip()
        return f"{where}: {self.reason}" if self.reason else where


@dataclass(frozen=True, slots=True)
class Given:
    """Raw value with its origin."""

    raw: Raw
    origin: Origin


Layer: TypeAlias = Mapping[str, Given]
"""Values of one source by dotted key, such as ``nnodes`` or ``env.NCCL_DEBUG``."""
