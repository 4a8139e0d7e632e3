"""Code shipped with a job: a script, or a directory as an archive."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.kube.objects import Object

ARCHIVE: Final = "code.tar.gz"
"""Entry of the ConfigMap for a directory; it is unpacked before the pod's program starts."""

HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class Code:
    """Content of the ConfigMap."""

    file: str
    """Name of its only entry: the script's file name, or :data:`ARCHIVE`."""
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
        """Prefix of the SHA-256; part of the ConfigMap's name, since its content never changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_LENGTH]


def name_of(job: str, code: Code | None) -> str:
    """Return the name of a job's ConfigMap."""
    return f"{job}-code-{code.hash}" if code is not None else f"{job}-code"


def read_back(config_map: Object) -> Code | None:
    """Return the code of a submitted job, or None if the ConfigMap has another form."""
    entries: dict[str, Any] = {**(config_map.get("data") or {}), **(config_map.get("binaryData") or {})}
    return Code(*next(iter(entries.items()))) if len(entries) == 1 else None
