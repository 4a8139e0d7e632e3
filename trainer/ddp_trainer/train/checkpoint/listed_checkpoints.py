"""List the checkpoints in a directory or below a URL, for the commands that look into them.

:func:`list_checkpoints` is the entry point. A checkpoint of an object store is copied to a temporary directory to be
read, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_files import CorruptCheckpoint
from ddp_trainer.train.checkpoint.manifest import PAYLOAD, Manifest
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.locations import StorageUrl


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One checkpoint at a place."""

    name: str
    place: str
    """Path or URL, for messages."""
    step: int
    manifest: Callable[[], Manifest | None]
    """Returns the manifest if all files have the expected size, else None."""
    open: Callable[[], AbstractContextManager[Path]]
    """Returns a directory with the files, which is there within the context."""

    @property
    def size_bytes(self) -> int | None:
        """Size of the payload, in bytes; None if it is not on this machine."""
        try:
            return (Path(self.place) / PAYLOAD).stat().st_size
        except OSError:
            return None


def list_checkpoints(place: Path | StorageUrl) -> list[ListedCheckpoint]:
    """Return the checkpoints at a place, newest first.

    Raises:
        BadConfig: There is no such directory.
        StorageError: The store failed.
    """
    if isinstance(place, StorageUrl):
        return _of_store(place)
    if not place.is_dir():
        raise BadConfig(f"There is no directory {place}.", hint="Give a --checkpoint-dir of a run.")
    return [_of_directory(each) for each in checkpoint_files.directories(place)]


def _of_directory(directory: Path) -> ListedCheckpoint:
    step, _ = checkpoint_files.parse_name(directory)
    manifest = partial(checkpoint_files.manifest_if_complete, directory)
    return ListedCheckpoint(directory.name, str(directory), step, manifest, lambda: nullcontext(directory))


def _of_store(url: StorageUrl) -> list[ListedCheckpoint]:
    from ddp_trainer.train.checkpoint.object_checkpoints import (  # noqa: PLC0415 - only for object stores
        StoredCheckpoints,
        step_of,
    )
    from ddp_trainer.train.storage.object_storage import open_storage  # noqa: PLC0415 - as above

    stored = StoredCheckpoints(open_storage(url))

    def manifest_of(name: str) -> Manifest | None:
        try:
            return stored.manifest(name)
        except CorruptCheckpoint:
            return None

    return [
        ListedCheckpoint(
            name, f"{url}/{name}", step_of(name), partial(manifest_of, name), partial(stored.local_copy, name)
        )
        for name in stored.names()
    ]
