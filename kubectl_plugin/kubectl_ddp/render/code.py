"""The code that travels with a job: a script, or a directory as an archive."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.backend import Object

ARCHIVE: Final = "code.tar.gz"
"""Entry of the ConfigMap that holds a directory; it is unpacked before the pod's program starts."""

HASH_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class Code:
    """What is in the ConfigMap."""

    file: str
    """Name of its one entry: that of the script, without directories, or :data:`ARCHIVE`."""
    text: str
    """The script; of an archive its bytes in base64."""
    files: int = 0
    """How many it holds; 0 when nobody counted."""

    @property
    def is_archive(self) -> bool:
        """Whether it holds a directory."""
        return self.file == ARCHIVE

    @property
    def hash(self) -> str:
        """Beginning of the SHA-256: what the ConfigMap is named by, since its content never changes."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:HASH_LENGTH]


def name_of(job: str, code: Code | None) -> str:
    """Name of the ConfigMap of a job."""
    return f"{job}-code-{code.hash}" if code is not None else f"{job}-code"


def read_back(config_map: Object) -> Code | None:
    """The code that a job was submitted with; ``None`` when it is something else."""
    entries: dict[str, Any] = {**(config_map.get("data") or {}), **(config_map.get("binaryData") or {})}
    return Code(*next(iter(entries.items()))) if len(entries) == 1 else None
