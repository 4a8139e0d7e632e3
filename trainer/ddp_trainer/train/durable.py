"""Files that are whole or absent after a crash of the process or of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def write_durably(file: Path, content: bytes) -> None:
    """Replace the file's content in one step: a reader sees the old or the new, also after a power cut.

    Raises:
        OSError: it could not be written; what was there before still is.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write_synced(temporary, content)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
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
