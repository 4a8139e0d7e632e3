"""Read, verify, write and prune the checkpoints in one directory.

A checkpoint is a directory ``step-00000420`` with a payload and a manifest. It is written under a temporary name and
synced, the manifest last. Then it is renamed, and only then are older checkpoints removed.
:meth:`CheckpointDirectory.write` streams an archive to the disk and may run beside the training, on a snapshot. In a
sharded checkpoint, each rank writes the part it holds: the payload is the first rank's part, and one file beside it per
other rank has its digest in the same manifest (:mod:`ddp_trainer.train.checkpoint.sharded_writer`). :func:`read`
accepts only files whose digests match the manifest, unless its caller verifies them later
(:mod:`ddp_trainer.train.checkpoint.checkpoint_verify`). Loading unpickles only tensors and plain values
(``weights_only``).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from ddp_trainer.process.atomic_files import FsyncStream, sync_directory, write_fsync
from ddp_trainer.train.checkpoint.manifest import (
    FORMAT,
    MANIFEST,
    PAYLOAD,
    SHARDED,
    SHARDED_FORMATS,
    CheckpointFile,
    Manifest,
)
from ddp_trainer.train.checkpoint.torch_zip_writer import PIECE_BYTES, Archive
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.option_values import TargetMetric
from ddp_trainer.train.utils.errors import CheckpointMismatch

_Place = TypeVar("_Place")
_NAME: Final = re.compile(r"step-(\d{8,})(\.old)?")
_TEMPORARY: Final = ".tmp-"
SUSPECT: Final = "SUSPECT"
"""File in a checkpoint's directory: its digests are computed before it is used."""
_PROVEN_AT_ONCE: Final = 4
"""Files whose digests are computed in parallel: one thread hashes about as fast as a disk reads."""
_MAX_MANIFEST_BYTES: Final = 64 << 20
"""Upper limit of a manifest, in bytes. It has about 150 bytes for each rank that wrote a piece."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on a disk, or a state in memory."""

    manifest: Manifest
    directory: Path | None = None
    """Its directory; None if it is in memory."""
    state: dict[str, Any] | None = None
    """The complete state; None if it is on a disk."""
    is_verified: bool = True
    """False if the digests of the files from which it comes have not been computed yet."""

    @property
    def is_sharded(self) -> bool:
        """True if it is on a disk, in one file for each rank that wrote it."""
        return self.directory is not None and self.manifest.format in SHARDED_FORMATS


class CorruptCheckpoint(Exception):
    """A checkpoint is incomplete or damaged; the message is the reason."""


class CheckpointDirectory:
    """Checkpoints of one run, for one writer."""

    def __init__(self, path: Path, *, keep: int, claim: WriteLease, best: TargetMetric | None = None) -> None:
        """Create the view; :meth:`open` claims the directory.

        Args:
            path: The directory.
            keep: Number of newest checkpoints to keep.
            claim: Claim of this writer.
            best: Metric whose best checkpoint is kept as well; None for none.
        """
        self.path = path
        self.place = str(path)
        """Directory or URL of the checkpoints, for messages."""
        self._keep = keep
        self._claim = claim
        self._attempt = 0
        self._best = best

    def open(self) -> None:
        """Claim the directory and remove unfinished checkpoints of earlier writers.

        Raises:
            StaleGeneration: A later generation has claimed the directory.
            OSError: The directory cannot be used.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._claim.take()
        for leftover in self.path.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def renew(self, *, generation: int, fence: int) -> None:
        """Claim the directory for a later worker group; see :meth:`.WriteLease.renew`."""
        self._claim.renew(generation=generation, fence=fence)

    def fetch(self, skipped: Callable[[str], None]) -> None:
        """Do nothing: the checkpoints are in this directory. Those of an object store are copied to it.

        Args:
            skipped: Receives a sentence for each damaged checkpoint.
        """

    def latest_checkpoint(self, skipped: Callable[[str], None], *, verified: bool = True) -> Checkpoint | None:
        """Return the newest valid checkpoint, or None.

        Args:
            skipped: Receives a sentence for each damaged checkpoint.
            verified: Compute digests; see :func:`read`.
        """
        self.fetch(skipped)
        for directory in directories(self.path):
            try:
                return read(directory, verified=verified)
            except (CorruptCheckpoint, OSError) as err:
                skipped(passed_over(directory, err))
        return None

    def prepare(self, step: int) -> Path:
        """Create the temporary directory of a step, so that other ranks can write to it before :meth:`write`.

        Raises:
            OSError: The directory cannot be created.
        """
        shutil.rmtree(self._temp_path(step), ignore_errors=True)
        # A process of an earlier group may still write to the previous directory, so each attempt gets a new name.
        self._attempt += 1
        temporary = self._temp_path(step)
        temporary.mkdir(parents=True)
        return temporary

    def write(
        self, draft: Manifest, archive: Archive, others: Callable[[Path], Sequence[CheckpointFile]] | None = None
    ) -> Manifest:
        """Write a checkpoint durably, then remove those that are not kept.

        Args:
            draft: Manifest without digest and size.
            archive: State to write.
            others: Waits for the files of other ranks in the prepared directory and returns them.

        Returns:
            The manifest with digest and size.

        Raises:
            StaleGeneration: Another writer has claimed the directory; nothing was replaced.
            OSError: The disk is full or fails; nothing was replaced.
        """
        target, temporary = self.path / name_of(draft.step), self._temp_path(draft.step)
        try:
            temporary.mkdir(parents=True, exist_ok=True)  # prepare() may have made it; the name has this writer's token
            with FsyncStream(temporary / PAYLOAD) as stream:
                archive.write_to(stream)
            manifest = replace(draft, sha256=stream.sha256, size_bytes=stream.size_bytes)
            if others is not None:
                manifest = replace(manifest, format=SHARDED, pieces=tuple(others(temporary)))
            write_fsync(temporary / MANIFEST, manifest.to_json().encode())
            sync_directory(temporary)
            self._claim.check()
            install(temporary, target)
        except OSError:
            # A newer writer removes our unfinished files; then the cause is not the disk.
            self._claim.check()
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_directory(self.path)
        self._prune(manifest.step)
        return manifest

    def _temp_path(self, step: int) -> Path:
        return self.path / f"{_TEMPORARY}{name_of(step)}-{self._claim.token}-{self._attempt}"

    def _prune(self, newest: int) -> None:
        """Keep the newest ``keep`` valid checkpoints up to the one just written, and the best up to there.

        Checkpoints of later steps belong to another writer and stay.
        """
        past = [directory for directory in directories(self.path) if parse_name(directory)[0] <= newest]
        complete = {
            directory: manifest
            for directory in past
            if not parse_name(directory)[1] and (manifest := manifest_if_complete(directory)) is not None
        }
        retained = list(complete)[: self._keep]
        if self._best is not None and (best := best_of(complete, self._best)) is not None:
            retained.append(best)
        for directory in past:
            if directory not in retained:
                shutil.rmtree(directory, ignore_errors=True)


def directories(path: Path) -> Iterator[Path]:
    """Return the directories with a checkpoint's name, newest first.

    A replaced directory (``.old``) follows the one of the same step.
    """
    try:
        found = [entry for entry in path.iterdir() if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return iter(())
    return iter(sorted(found, key=lambda entry: (parse_name(entry)[0], not parse_name(entry)[1]), reverse=True))


def best_of(manifests: Mapping[_Place, Manifest], goal: TargetMetric) -> _Place | None:
    """Return the place of the best evaluated checkpoint, the earliest of equals; None if none was evaluated."""
    evaluated = [(path, manifest) for path, manifest in manifests.items() if goal.metric in (manifest.metrics or {})]
    evaluated.sort(key=lambda pair: pair[1].step)
    best: tuple[_Place, float] | None = None
    for path, manifest in evaluated:
        value = (manifest.metrics or {})[goal.metric]
        if goal.is_better(value, None if best is None else best[1]):
            best = path, value
    return None if best is None else best[0]


def unpack(checkpoint: Checkpoint, only: str = "") -> dict[str, Any]:
    """Return the complete state. From a disk, its tensors are mapped from the file and read when they are used.

    Args:
        checkpoint: The checkpoint.
        only: ``"model"`` to read only the model's tensors of a sharded checkpoint; empty for all.

    Raises:
        CheckpointMismatch: The files are valid but contain objects that must not be loaded.
        OSError: A file cannot be read.
    """
    if checkpoint.state is not None:
        return checkpoint.state
    assert checkpoint.directory is not None  # noqa: S101 - one of both is set
    if checkpoint.is_sharded:
        from ddp_trainer.train.checkpoint.dcp_reader import assemble_state  # noqa: PLC0415 - takes a second, rarely needed

        return assemble_state(checkpoint.directory, checkpoint.manifest, only)
    try:
        state = torch.load(checkpoint.directory / PAYLOAD, map_location="cpu", mmap=True, weights_only=True)
    except OSError:
        raise
    except Exception as err:
        raise CheckpointMismatch(
            f"The checkpoint of step {checkpoint.manifest.step} contains objects that weights_only=True refuses: "
            f"{str(err).splitlines()[0]}",
            hint="Give another --checkpoint-dir.",
        ) from err
    return state  # type: ignore[no-any-return] # torch.load is untyped


def read(directory: Path, *, verified: bool = True) -> Checkpoint:
    """Return one checkpoint after verifying it.

    Args:
        directory: Its directory.
        verified: Compute the digests of its files. Without, only the structure of a complete state is checked, if a
            process that finds damage later can leave a note for the next one (:data:`SUSPECT`).

    Raises:
        CorruptCheckpoint: A file is missing, differs from the manifest, or cannot be parsed for any other reason.
        OSError: The disk fails.
    """
    try:
        manifest = _read_manifest(directory)
        if manifest.format > FORMAT:
            # Fields of a later format are not trusted. check_same_run refuses to resume from it.
            return Checkpoint(manifest, directory)
        if verified or manifest.pieces or (directory / SUSPECT).exists() or not os.access(directory, os.W_OK):
            verify_files(directory, manifest.files)
            return Checkpoint(manifest, directory)
        _check_file_size(directory / PAYLOAD, manifest.size_bytes)
        with zipfile.ZipFile(directory / PAYLOAD) as archive:
            archive.read(next(name for name in archive.namelist() if name.endswith("/data.pkl")))  # checks its CRC-32
        return Checkpoint(manifest, directory, is_verified=False)
    except FileNotFoundError as err:
        raise CorruptCheckpoint(f"{Path(err.filename).name} is missing") from None
    except (CorruptCheckpoint, OSError):
        raise
    except Exception as err:
        # A damaged file can make a parser raise anything. The previous checkpoint is better than no run.
        raise CorruptCheckpoint(f"it cannot be read ({type(err).__name__}: {err})") from err


def _read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint's directory.

    Raises:
        CorruptCheckpoint: It cannot be parsed, or belongs to another step than the directory.
        OSError: It cannot be read.
    """
    file = directory / MANIFEST
    size_bytes = file.stat().st_size
    if not 0 < size_bytes <= _MAX_MANIFEST_BYTES:  # pipes and devices have size 0 too, and block a reader
        raise CorruptCheckpoint(f"{MANIFEST} is damaged (it has {size_bytes} bytes)")
    return parse_manifest(file.read_bytes(), parse_name(directory)[0])


def parse_manifest(content: bytes, step: int) -> Manifest:
    """Return the manifest of a checkpoint of this step.

    Raises:
        CorruptCheckpoint: It cannot be parsed, or belongs to another step.
    """
    try:
        manifest = Manifest.from_json(content.decode())
    except ValueError as err:
        raise CorruptCheckpoint(f"{MANIFEST} is damaged ({err})") from None
    if manifest.format <= FORMAT and manifest.step != step:
        raise CorruptCheckpoint(f"{MANIFEST} is that of step {manifest.step}")
    return manifest


def passed_over(directory: Path | str, err: Exception) -> str:
    """Return the message about a skipped checkpoint."""
    return f"Skipped the checkpoint {directory}: {reason_of(err)}. Going on from the one before."


def reason_of(err: Exception) -> str:
    """Return the reason of an error, without a full stop."""
    return (err.strerror if isinstance(err, OSError) else "") or str(err) or type(err).__name__


def verify_files(directory: Path, pieces: Sequence[CheckpointFile]) -> None:
    """Verify files against their digests, several in parallel, without loading any into memory.

    Raises:
        CorruptCheckpoint: A file has another digest or size.
        OSError: A file cannot be read.
    """

    def verify_file(piece: CheckpointFile) -> None:
        _check_file_size(directory / piece.file, piece.size_bytes)
        sha, buffer = hashlib.sha256(), memoryview(bytearray(PIECE_BYTES))
        # Pieces larger than those of file_digest(), because each needs the GIL, for which this thread may have to wait.
        with (directory / piece.file).open("rb", buffering=0) as stream:
            while size_bytes := stream.readinto(buffer):
                sha.update(buffer[:size_bytes])
        check_digest(piece.file, sha.hexdigest(), piece.sha256)

    if len(pieces) == 1:
        verify_file(pieces[0])  # in this thread: Python waits for the threads of a pool before it exits
        return
    with ThreadPoolExecutor(_PROVEN_AT_ONCE, "ddp-digest") as threads:
        for _ in threads.map(verify_file, pieces):
            pass


def _check_file_size(file: Path, wanted: int) -> None:
    """Check the size before the content is read, which may exceed the memory."""
    status = file.stat()
    size_bytes = status.st_size
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for its writer
        raise CorruptCheckpoint(f"{file.name} is not a regular file")
    if size_bytes != wanted:
        raise CorruptCheckpoint(f"{file.name} has {size_bytes} of {wanted} bytes")


def check_digest(file: str, sha256: str, wanted: str) -> None:
    """Raise CorruptCheckpoint if the digest of a file is not the wanted one."""
    if sha256 != wanted:
        raise CorruptCheckpoint(f"{file} does not have the digest that {MANIFEST} names")


def manifest_if_complete(directory: Path) -> Manifest | None:
    """Return the manifest if all files have the expected size, else None.

    A cheap version of :func:`read` for pruning: it checks no digests.
    """
    try:
        manifest = _read_manifest(directory)
        for file in manifest.files:
            _check_file_size(directory / file.file, file.size_bytes)
    except Exception:  # noqa: BLE001 - as in read
        return None
    return manifest


def install(temporary: Path, target: Path) -> None:
    """Rename a finished directory to its final name; a directory of that name stays readable until then."""
    if target.exists():
        old = target.with_name(f"{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    temporary.rename(target)


def name_of(step: int) -> str:
    """Return the name of a checkpoint's directory."""
    return f"step-{step:08d}"


def parse_name(directory: Path) -> tuple[int, bool]:
    """Return the step of a checkpoint's directory, and True if it was replaced (``.old``)."""
    match = _NAME.fullmatch(directory.name)
    if match is None:
        raise ValueError(f"{directory.name} is not the name of a checkpoint")
    return int(match[1]), match[2] is not None
