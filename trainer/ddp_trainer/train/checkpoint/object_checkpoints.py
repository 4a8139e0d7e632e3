"""Checkpoints in an object store: written to a local directory first, then uploaded beside the training.

A checkpoint is a folder such as ``step-00000230.<token>-<number>`` with the same files as in a directory. The upload
writes the files, then the manifest. It is published by one conditional write to the journal
(:mod:`ddp_trainer.train.checkpoint.write_lease`), which also removes those that are not kept. Files are deleted after
that, so a reader of the journal never finds half a checkpoint. Names are unique, so no upload changes a published file.

:class:`ObjectCheckpoints` is a checkpoint directory with these steps in its background write, so a checkpoint counts as
saved once it is in the store. :class:`StoredCheckpoints` reads. The local directory holds one checkpoint as a cache.
What was not published there is never read.

:func:`list_checkpoints` lists those in a directory or below a URL, for the commands that read them. A checkpoint of an
object store is copied to a temporary directory to be read, one at a time.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ddp_trainer.process.atomic_files import FsyncStream
from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory, CorruptCheckpoint
from ddp_trainer.train.checkpoint.manifest import FORMAT, MANIFEST, PAYLOAD, CheckpointFile, Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.checkpoint.write_lease import NAME, ClaimJournal, WriteLease, read_record
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.storage.object_storage import ObjectStorage, S3Storage, open_storage
from ddp_trainer.train.utils.errors import BadConfig, ObjectMissing, StorageError, StorageFull
from ddp_trainer.train.utils.locations import StorageUrl


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
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


def list_checkpoints(place: Path | StorageUrl) -> list[CheckpointInfo]:
    """Return the checkpoints at a place, newest first.

    Raises:
        BadConfig: The directory does not exist.
        StorageError: The store failed.
    """
    if isinstance(place, StorageUrl):
        return _of_store(place)
    if not place.is_dir():
        raise BadConfig(f"The directory {place} does not exist.", hint="Give a --checkpoint-dir of a run.")
    return [_of_directory(directory) for directory in checkpoint_files.directories(place)]


def _of_directory(directory: Path) -> CheckpointInfo:
    step, _ = checkpoint_files.parse_name(directory)
    manifest = partial(checkpoint_files.manifest_if_complete, directory)
    return CheckpointInfo(directory.name, str(directory), step, manifest, lambda: nullcontext(directory))


def _of_store(url: StorageUrl) -> list[CheckpointInfo]:
    stored = StoredCheckpoints(open_storage(url))

    def manifest_of(name: str) -> Manifest | None:
        try:
            return stored.manifest(name)
        except CorruptCheckpoint:
            return None

    return [
        CheckpointInfo(
            name, f"{url}/{name}", step_of(name), partial(manifest_of, name), partial(stored.local_copy, name)
        )
        for name in stored.names()
    ]


_DOWNLOAD: Final = ".tmp-download"


class StoredCheckpoints:
    """Checkpoints below one URL, to read."""

    def __init__(self, storage: ObjectStorage) -> None:
        self.storage = storage

    def names(self) -> list[str]:
        """Return the names of the published checkpoints, newest first.

        Without a journal, for example in a copy of a directory, each checkpoint with a manifest counts.
        """
        _, record = read_record(self.storage)
        return newest_first(self.complete_names() if record is None else record.checkpoints)

    def complete_names(self) -> list[str]:
        """Return the names of all checkpoints with a manifest, published or not."""
        keys = (entry.key.split("/") for entry in self.storage.list())
        return [key[0] for key in keys if len(key) == 2 and key[1] == MANIFEST and re.fullmatch(NAME, key[0])]

    def manifest(self, name: str) -> Manifest:
        """Return the manifest of a checkpoint whose files have the expected size.

        Raises:
            CorruptCheckpoint: It cannot be parsed, or a file is missing or has another size.
            StorageError: The store failed.
        """
        manifest = checkpoint_files.parse_manifest(self._read_manifest(name), step_of(name))
        if manifest.format <= FORMAT:
            sizes = {entry.key: entry.size_bytes for entry in self.storage.list(name)}
            for file in manifest.files:
                found = sizes.get(f"{name}/{file.file}")
                if found is None:
                    raise CorruptCheckpoint(f"{file.file} is missing")
                if found != file.size_bytes:
                    raise CorruptCheckpoint(f"{file.file} has {found} of {file.size_bytes} bytes")
        return manifest

    def download(self, name: str, target: Path) -> dict[str, str]:
        """Copy the files of a checkpoint to a new directory.

        Returns:
            Name of a file → its SHA-256 digest.

        Raises:
            OSError: The disk is full or fails.
            StorageError: The store failed.
        """
        target.mkdir(parents=True)
        digests = {}
        for entry in self.storage.list(name):
            file = target / entry.key.rpartition("/")[2]
            with FsyncStream(file) as stream:
                for chunk in self.storage.chunks(entry.key, entry.size_bytes):
                    stream.write(chunk)
            digests[file.name] = stream.sha256
        return digests

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Copy a checkpoint to a temporary directory with the name of its step; delete it afterwards."""
        with tempfile.TemporaryDirectory(prefix="ddp-checkpoint-") as directory:
            target = Path(directory) / checkpoint_files.name_of(step_of(name))
            self.download(name, target)
            yield target

    def _read_manifest(self, name: str) -> bytes:
        try:
            return self.storage.read(f"{name}/{MANIFEST}")
        except ObjectMissing:
            raise CorruptCheckpoint(f"{MANIFEST} is missing") from None


class ObjectCheckpoints(CheckpointDirectory):
    """Checkpoints of one run in an object store, for one writer."""

    def __init__(
        self,
        stored: StoredCheckpoints,
        path: Path,
        *,
        keep: int,
        claim: WriteLease,
        journal: ClaimJournal,
        best: TargetMetric | None = None,
    ) -> None:
        """Create the view; :meth:`open` claims the store.

        Args:
            stored: Checkpoints in the store.
            path: Local directory in which a checkpoint is prepared.
            keep: Number of newest checkpoints to keep in the store.
            claim: Claim of this writer on the local directory.
            journal: Claim of this writer on the store.
            best: Metric whose best checkpoint is kept as well; None for none.
        """
        super().__init__(path, keep=1, claim=claim)
        self.place = str(stored.storage.url)
        self._stored = stored
        self._journal = journal
        self._keep_stored = keep
        self._best_stored = best
        self._uploads = 0

    def open(self) -> None:
        """Claim the store, and remove unpublished checkpoints and unfinished uploads of earlier writers.

        Raises:
            StaleGeneration: A later generation has claimed the store.
            StorageError: The store cannot be used.
            OSError: The local directory cannot be used, or the store is full.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.path.stat().st_uid != os.getuid():
            raise OSError(errno.EPERM, f"{self.path} belongs to another user")
        super().open()
        with _storage_full_as_os_error():
            self._remove_unpublished(self._journal.take())
            if isinstance(self._stored.storage, S3Storage):
                self._stored.storage.abort_uploads()

    def renew(self, *, generation: int, fence: int) -> None:
        """Claim the store for a later worker group; see :meth:`.WriteLease.renew`."""
        super().renew(generation=generation, fence=fence)
        with _storage_full_as_os_error():
            self._journal.renew(generation=generation, fence=fence)

    def fetch(self, skipped: Callable[[str], None]) -> None:
        """Copy the newest valid checkpoint from the store, unless it is here, and remove all others here.

        Raises:
            StorageError: The store failed. A run must not start from another state because of that.
            OSError: The disk is full or fails.
        """
        found = None
        for name in self._stored.names():
            try:
                found = self._fetch_one(name)
                break
            except CorruptCheckpoint as err:
                skipped(checkpoint_files.passed_over(f"{self.place}/{name}", err))
        for directory in list(checkpoint_files.directories(self.path)):
            if directory != found:
                shutil.rmtree(directory, ignore_errors=True)

    def _fetch_one(self, name: str) -> Path:
        """Return the directory with a verified copy of a checkpoint.

        Raises:
            CorruptCheckpoint: The checkpoint in the store is damaged.
        """
        manifest = self._stored.manifest(name)
        target = self.path / checkpoint_files.name_of(manifest.step)
        if checkpoint_files.manifest_if_complete(target) == manifest and _has_valid_files(target, manifest):
            return target
        temporary = self.path / _DOWNLOAD
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            digests = self._stored.download(name, temporary)
            for file in manifest.files if manifest.format <= FORMAT else ():
                checkpoint_files.check_digest(file.file, digests.get(file.file, ""), file.sha256)
            shutil.rmtree(target, ignore_errors=True)
            checkpoint_files.install(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def write(
        self, draft: Manifest, archive: Archive, others: Callable[[Path], Sequence[CheckpointFile]] | None = None
    ) -> Manifest:
        """Write a checkpoint to the local disk, upload and publish it, then remove those that are not kept.

        Raises:
            StaleGeneration: Another writer has claimed the store; nothing was replaced.
            OSError: The disk or the store is full or fails; nothing was replaced.
        """
        manifest = super().write(draft, archive, others)
        try:
            self._publish(manifest)
        except StorageError as err:
            number = errno.EDQUOT if isinstance(err, StorageFull) else errno.EIO
            raise OSError(number, str(err).rstrip(".")) from err
        return manifest

    def _publish(self, manifest: Manifest) -> None:
        storage, directory = self._stored.storage, self.path / checkpoint_files.name_of(manifest.step)
        self._uploads += 1
        name = f"{directory.name}.{self._journal.token}-{self._uploads}"
        for file in manifest.files:
            storage.write(f"{name}/{file.file}", directory / file.file)
        storage.write(f"{name}/{MANIFEST}", manifest.to_json().encode())
        self._remove_unpublished(self._journal.publish(lambda published: self._names_to_keep(name, published)))

    def _names_to_keep(self, name: str, published: Sequence[str]) -> tuple[str, ...]:
        """Return the names to keep: the newest up to this one, the best up to there, and those of later steps."""
        step = step_of(name)
        later = [other for other in published if step_of(other) > step]
        past = newest_first([name, *(other for other in published if step_of(other) < step)])
        retained = past[: self._keep_stored]
        if self._best_stored is not None and (best := self._best_of(past)) is not None and best not in retained:
            retained.append(best)
        return tuple(newest_first([*later, *retained]))

    def _best_of(self, names: Sequence[str]) -> str | None:
        manifests = {}
        for name in names:
            try:
                manifests[name] = self._stored.manifest(name)
            except CorruptCheckpoint:
                continue
        return None if self._best_stored is None else checkpoint_files.best_of(manifests, self._best_stored)

    def _remove_unpublished(self, published: Sequence[str]) -> None:
        for entry in self._stored.storage.list():
            folder = entry.key.partition("/")[0]
            if re.fullmatch(NAME, folder) and folder not in published:
                self._stored.storage.delete(entry.key)


def newest_first(names: Sequence[str]) -> list[str]:
    """Return names of checkpoints in the order of their steps, the greatest first."""
    return sorted(names, key=step_of, reverse=True)


def step_of(name: str) -> int:
    """Return the step in the name of a stored checkpoint.

    >>> step_of("step-00000230.5e8f-1")
    230
    """
    match = re.match("step-([0-9]{8,})", name)
    if match is None:
        raise ValueError(f"{name} is not the name of a checkpoint")
    return int(match[1])


def _has_valid_files(directory: Path, manifest: Manifest) -> bool:
    try:
        checkpoint_files.verify_files(directory, manifest.files)
    except (CorruptCheckpoint, OSError):
        return False
    return True


@contextmanager
def _storage_full_as_os_error() -> Iterator[None]:
    """Raise a full store as a full disk, which does not end a run that starts."""
    try:
        yield
    except StorageFull as err:
        raise OSError(errno.EDQUOT, str(err).rstrip(".")) from err
