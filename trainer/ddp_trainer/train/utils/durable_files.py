"""Files that are whole or absent after a crash of the process or of the machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Self

from ddp_trainer.process.atomic_files import draft_of


def write_durably(file: Path, content: bytes) -> None:
    """Replace the file's content in one step: a reader sees the old or the new, also after a power cut.

    Raises:
        OSError: it could not be written; what was there before still is.
    """
    with draft_of(file) as draft:
        write_synced(draft, content)
    sync_directory(file.parent)


def write_synced(file: Path, content: bytes) -> None:
    """Write, and wait until it is on the disk."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make creations and renames in the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SyncedStream:
    """A new file that is written as a stream, with the digest and the size of what went into it.

    Closing it waits until all of it is on the disk, unless writing failed.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._sha = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        """Digest of what was written so far, in hexadecimal."""
        return self._sha.hexdigest()

    def write(self, piece: bytes | memoryview) -> None:
        """Append the whole piece.

        Raises:
            OSError: the disk is full or fails.
        """
        self._sha.update(piece)
        self.size_bytes += len(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
