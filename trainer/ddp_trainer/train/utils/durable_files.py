"""Writing files that are complete or absent after a crash of the process or the machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Self

from ddp_trainer.process.atomic_files import draft_of


def atomic_write(file: Path, content: bytes) -> None:
    """Replace a file's content atomically.

    A reader sees the old or the new content, also after a power failure.

    Raises:
        OSError: The file could not be written. The old content is still there.
    """
    with draft_of(file) as draft:
        write_fsync(draft, content)
    sync_directory(file.parent)


def write_fsync(file: Path, content: bytes) -> None:
    """Write a file and wait until its content is on the disk (``fsync``)."""
    with FsyncStream(file) as stream:
        stream.write(content)


def sync_directory(directory: Path) -> None:
    """Make file creations and renames in a directory survive a power failure (``fsync``)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FsyncStream:
    """New file, written as a stream, with the SHA-256 digest and the size of its content.

    On exit, the context manager waits until the content is on the disk, unless an exception is raised inside.
    """

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._sha = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        """SHA-256 digest of the bytes written so far, in hexadecimal."""
        return self._sha.hexdigest()

    def write(self, piece: bytes | memoryview) -> int:
        """Append all bytes of ``piece``, and return their number.

        Raises:
            OSError: The disk is full or has failed.
        """
        self._sha.update(piece)
        self.size_bytes += len(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(self._descriptor, view) :]
        return len(piece)

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self.size_bytes

    def flush(self) -> None:
        """Do nothing: the stream has no buffer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._descriptor)
        finally:
            os.close(self._descriptor)
