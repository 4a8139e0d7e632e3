"""Where each value of a job came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from kubectl_ddp.spec.values import Raw


class Kind(StrEnum):
    """Sources, strongest first."""

    FLAG = "flag"
    FILE = "file"
    FABRIC = "fabric"
    CONFIG = "config"
    """The person's own defaults."""
    PRESET = "preset"
    ENVIRONMENT = "environment"
    RULE = "rule"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    kind: Kind
    place: str = ""
    """The flag, the file with its line, the preset, the variable, or the field that a rule started from."""
    reason: str = ""
    """Why a preset or a rule sets it."""

    def __str__(self) -> str:
        """For a person, as in ``preset gpu-nccl: failures print nothing otherwise``."""
        where = self.place if self.kind in {Kind.FLAG, Kind.FILE, Kind.CONFIG} else f"{self.kind} {self.place}".rstrip()
        return f"{where}: {self.reason}" if self.reason else where


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was given, and where."""

    raw: Raw
    origin: Origin


Layer: TypeAlias = Mapping[str, Given]
"""What one source says: dotted key, as in ``nnodes`` or ``env.NCCL_DEBUG``, to value."""
