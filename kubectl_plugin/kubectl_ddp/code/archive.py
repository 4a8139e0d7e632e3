"""Code shipped with a job: a script, or a directory as an archive."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.kube.objects import Object

ARCHIVE: Final = "code.tar.gz"
"""Entry of the ConfigMap for a directory; it is unpacked before the pod's program starts."""
PART_BYTES: Final = 900 << 10
"""Largest part of the code in one ConfigMap, in bytes. A ConfigMap holds 1 MiB, including its metadata."""
PART_LETTERS: Final = PART_BYTES // 3 * 4
"""The same in base64."""

HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class Code:
    """Content of the ConfigMaps."""

    file: str
    """Name of the script's file, or :data:`ARCHIVE`."""
    text: str
    """The script's text, or the archive in base64."""
    files: int = 0
    """Number of files in it; 0 if unknown."""

    @property
    def is_archive(self) -> bool:
        """True if it contains a directory."""
        return self.file == ARCHIVE

    @property
    def hash(self) -> str:
        """Prefix of the SHA-256; part of the ConfigMaps' names, since their content never changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_LENGTH]


@dataclass(frozen=True, slots=True)
class CodePart:
    """Content of one ConfigMap."""

    name: str
    """Name of the ConfigMap."""
    entry: str
    """Name of its only entry. The entries in their order make the archive."""
    text: str


def code_parts(job: str, code: Code) -> list[CodePart]:
    """Return the ConfigMaps of a job's code. A script is one part."""
    length = len(code.text) or 1
    size = PART_LETTERS if code.is_archive else length
    return [
        CodePart(
            f"{job}-code-{code.hash}" + (f"-{number}" if number else ""),
            code.file + (f".{number}" if number else ""),
            code.text[start : start + size],
        )
        for number, start in enumerate(range(0, length, size))
    ]


def read_back(config_maps: Sequence[Object]) -> Code | None:
    """Return the code in the ConfigMaps of a submitted job, or None if there are none."""
    entries: dict[str, Any] = {}
    for each in config_maps:
        entries |= {**(each.get("data") or {}), **(each.get("binaryData") or {})}
    return Code(min(entries), "".join(entries[name] for name in sorted(entries))) if entries else None
