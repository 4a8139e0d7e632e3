"""Additional volumes of a job, and their mount paths."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from ddp_trainer.common.constants import Path
from kubectl_ddp.values.parsers import SUBDOMAIN
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
