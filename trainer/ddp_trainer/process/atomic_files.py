"""Files that are complete or absent after a crash: of the process (:func:`draft_of`), or of the machine
(:func:`atomic_write`).

Every module of the pod that replaces a file uses :func:`draft_of`, which writes a draft beside the target, then renames
it onto the target. The name of a draft holds a random token, not the process id: two containers that share a volume may
have equal process ids, and would write into one draft. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Self

_TOKEN_BYTES: Final = 8
_ABANDONED_SECONDS: Final = 3600.0
"""Age in seconds after which a draft has no writer: a draft is renamed within seconds."""


@contextmanager
def draft_of(file: Path) -> Iterator[Path]:
    """Yield the name of a new file beside ``file`` that replaces ``file`` when the block ends without an error.

    Raises:
        OSError: If the draft could not be renamed. The target still has its old content, and the draft is removed.
    """
    # Drawn for each draft: a token of the process would be the same in its forks.
    draft = file.with_name(f".{file.name}.{os.urandom(_TOKEN_BYTES).hex()}")
    try:
        yield draft
        draft.replace(file)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def remove_stale_temp_files(file: Path) -> None:
    """Remove drafts that crashed writers left more than an hour before ``file`` was last replaced.

    Both times come from the file system, so the clocks of the machines that share it do not matter.
    """
    with suppress(OSError):
        abandoned_before = file.stat().st_mtime - _ABANDONED_SECONDS
        for entry in file.parent.iterdir():
            if entry.name.startswith(f".{file.name}.") and entry.stat().st_mtime < abandoned_before:
                entry.unlink()


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
