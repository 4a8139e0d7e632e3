"""Checkpoints on a disk: written whole or not at all, proven by digests, loaded without running code.

A checkpoint is a directory ``step-00000420`` of a payload and a manifest. It comes into being under a temporary
name, is synced, manifest last, and is renamed; only then are older ones removed. ``write`` streams an archive to the
disk and may run beside the training, on a snapshot. Of a model that no rank holds whole, each rank writes what it has:
the payload is then the first rank's part, and the files beside it are those of others, with their digests in the same
manifest (:mod:`ddp_trainer.train.checkpoint.sharded_writer`). Loading never trusts a file whose digest the manifest
does not confirm, and unpickles nothing but tensors and plain values (``weights_only``).
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from ddp_trainer.train.checkpoint.manifest import FORMAT, IN_PIECES, MANIFEST, PAYLOAD, Manifest, Piece
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive, pack
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from ddp_trainer.train.config.metric_goal import Goal
from ddp_trainer.train.utils.durable_files import SyncedStream, sync_directory, write_synced
from ddp_trainer.train.utils.errors import CheckpointMismatch

_NAME: Final = re.compile(r"step-(\d{8,})(\.old)?")
_TEMPORARY: Final = ".tmp-"
_PROVEN_AT_ONCE: Final = 4
"""Files whose digests are computed at a time: one thread sums about as fast as a disk reads."""
_MAX_MANIFEST_BYTES: Final = 64 << 20
"""A manifest has about 150 bytes for each rank that wrote a piece."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose digests were checked: in memory, or, where it is in pieces, on a disk."""

    manifest: Manifest
    payload: bytes
    """The whole state; empty where it is in pieces."""
    directory: Path | None = None
    """Where it lies in pieces; None where the payload is the whole."""


class Damaged(Exception):
    """A checkpoint that is not whole; the message is the reason."""


class CheckpointDirectory:
    """The checkpoints of one run, as one writer sees them."""

    def __init__(self, path: Path, *, keep: int, claim: WriteLease, best: Goal | None = None) -> None:
        """Keeps the newest ``keep``, and the best by a metric where one is named."""
        self.path = path
        self._keep = keep
        self._claim = claim
        self._attempt = 0
        self._best = best

    def open(self) -> None:
        """Become the writer, and sweep up what writers before left unfinished.

        Raises:
            StaleGeneration: a later generation has claimed the directory.
            OSError: the directory cannot be used.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self._claim.take()
        for leftover in self.path.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def renew(self, *, generation: int, fence: int) -> None:
        """Stay the writer in a later worker group; see
        :meth:`ddp_trainer.train.checkpoint.write_lease.WriteLease.renew`.
        """
        self._claim.renew(generation=generation, fence=fence)

    def newest(self, skipped: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; each damaged one on the way is reported in a sentence."""
        for directory in directories(self.path):
            try:
                return read(directory)
            except (Damaged, OSError) as err:
                skipped(passed_over(directory, err))
        return None

    def prepare(self, step: int) -> Path:
        """Make the unfinished directory of a step now, for others to write to before :meth:`write` does.

        Raises:
            OSError: it cannot be made.
        """
        shutil.rmtree(self._unfinished(step), ignore_errors=True)
        # Of a group that is over, somebody may still write to the one before: that must not come in here.
        self._attempt += 1
        temporary = self._unfinished(step)
        temporary.mkdir(parents=True)
        return temporary

    def write(
        self, draft: Manifest, archive: Archive, others: Callable[[Path], Sequence[Piece]] | None = None
    ) -> Manifest:
        """Make a checkpoint durable, remove the ones that are no longer kept; its manifest, with digest and size.

        ``others`` waits for the files of other ranks in the directory that was prepared, and says what they are.

        Raises:
            StaleGeneration: another writer has claimed the directory; nothing was replaced.
            OSError: the disk is full or fails; nothing was replaced.
        """
        target, temporary = self.path / _name(draft.step), self._unfinished(draft.step)
        try:
            temporary.mkdir(parents=True, exist_ok=True)  # prepared, perhaps; its name is nobody else's
            with SyncedStream(temporary / PAYLOAD) as stream:
                archive.write_to(stream)
            manifest = replace(draft, sha256=stream.sha256, size_bytes=stream.size_bytes)
            if others is not None:
                manifest = replace(manifest, format=IN_PIECES, pieces=tuple(others(temporary)))
            write_synced(temporary / MANIFEST, manifest.to_json().encode())
            sync_directory(temporary)
            self._claim.check()
            _install(temporary, target)
        except OSError:
            # A newer writer sweeps up our unfinished files; then the disk is not what failed.
            self._claim.check()
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_directory(self.path)
        self._prune(manifest.step)
        return manifest

    def _unfinished(self, step: int) -> Path:
        return self.path / f"{_TEMPORARY}{_name(step)}-{self._claim.token}-{self._attempt}"

    def _prune(self, newest: int) -> None:
        """Keep the newest ``keep`` whole ones up to the one just written, and the best of all up to there.

        What stands after it is not ours to judge.
        """
        past = [directory for directory in directories(self.path) if parse_name(directory)[0] <= newest]
        whole = {
            directory: manifest
            for directory in past
            if not parse_name(directory)[1] and (manifest := looks_whole(directory)) is not None
        }
        kept = list(whole)[: self._keep]
        if self._best is not None and (best := best_of(whole, self._best)) is not None:
            kept.append(best)
        for directory in past:
            if directory not in kept:
                shutil.rmtree(directory, ignore_errors=True)


def directories(path: Path) -> Iterator[Path]:
    """All that are named as checkpoints, newest first; of the same step, the one that was replaced comes second."""
    try:
        found = [entry for entry in path.iterdir() if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return iter(())
    return iter(sorted(found, key=lambda entry: (parse_name(entry)[0], not parse_name(entry)[1]), reverse=True))


def best_of(manifests: Mapping[Path, Manifest], goal: Goal) -> Path | None:
    """The checkpoint whose evaluation was best, the earliest of equals; None where none was evaluated."""
    evaluated = [(path, each) for path, each in manifests.items() if goal.metric in (each.metrics or {})]
    evaluated.sort(key=lambda pair: pair[1].step)
    best: tuple[Path, float] | None = None
    for path, manifest in evaluated:
        value = (manifest.metrics or {})[goal.metric]
        if goal.is_better(value, None if best is None else best[1]):
            best = path, value
    return None if best is None else best[0]


def unpack(checkpoint: Checkpoint) -> dict[str, Any]:
    """The whole state, on the CPU.

    Raises:
        CheckpointMismatch: the files are whole, but hold something that must not be loaded.
    """
    if checkpoint.directory is not None:
        from ddp_trainer.train.checkpoint.dcp_reader import assembled  # noqa: PLC0415 - a second of imports; few need it

        return assembled(checkpoint.directory, checkpoint.manifest)
    try:
        state = torch.load(io.BytesIO(checkpoint.payload), map_location="cpu", weights_only=True)
    except Exception as err:
        raise CheckpointMismatch(
            f"The checkpoint of step {checkpoint.manifest.step} holds what is not loaded for safety: "
            f"{str(err).splitlines()[0]}",
            hint="Give another --checkpoint-dir.",
        ) from err
    return state  # type: ignore[no-any-return] # torch.load is untyped


def weights(checkpoint: Checkpoint) -> dict[str, Any]:
    """Of the state, the model's part alone. Raises CheckpointMismatch, as :func:`unpack` does."""
    if checkpoint.directory is None:
        return unpack(checkpoint)["model"]  # type: ignore[no-any-return] # as above
    from ddp_trainer.train.checkpoint.dcp_reader import assembled  # noqa: PLC0415 - as above

    return assembled(checkpoint.directory, checkpoint.manifest, only="model")["model"]  # type: ignore[no-any-return]


def copied(state: dict[str, Any], draft: Manifest) -> Checkpoint:
    """A state as a checkpoint that is on no disk."""
    buffer = io.BytesIO()
    pack(state).write_to(buffer)
    payload = buffer.getvalue()
    return Checkpoint(replace(draft, sha256=digest(payload), size_bytes=len(payload)), payload)


def digest(payload: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def read(directory: Path) -> Checkpoint:
    """Return one checkpoint, proven whole.

    Raises:
        Damaged: A file is missing, or differs from what the manifest says, or cannot be parsed for any other reason.
        OSError: The disk fails.
    """
    try:
        return _read(directory)
    except FileNotFoundError as err:
        raise Damaged(f"{Path(err.filename).name} is missing") from None
    except (Damaged, OSError):
        raise
    except Exception as err:
        # Whatever a damaged file makes of a parser: the checkpoint before is better than no run.
        raise Damaged(f"it cannot be read ({type(err).__name__}: {err})") from err


def _read(directory: Path) -> Checkpoint:
    manifest = _manifest(directory)
    if manifest.format > FORMAT:
        # Of a later version: nothing of it is believed, and whoever wants to go on from it is told so.
        return Checkpoint(manifest, b"")
    if manifest.pieces or manifest.format == IN_PIECES:
        prove(directory, manifest.files)
        return Checkpoint(manifest, b"", directory)
    _demand_size(directory / PAYLOAD, manifest.size_bytes)
    payload = (directory / PAYLOAD).read_bytes()
    _demand_digest(PAYLOAD, digest(payload), manifest.sha256)
    return Checkpoint(manifest, payload)


def _manifest(directory: Path) -> Manifest:
    """Return the manifest of a checkpoint's directory.

    Raises:
        Damaged: It cannot be parsed, or belongs to another step than the directory.
        OSError: It cannot be read.
    """
    file = directory / MANIFEST
    size_bytes = file.stat().st_size
    if not 0 < size_bytes <= _MAX_MANIFEST_BYTES:  # 0 is also what pipes and devices have, which block a reader
        raise Damaged(f"{MANIFEST} is damaged (it has {size_bytes} bytes)")
    try:
        manifest = Manifest.from_json(file.read_text())
    except ValueError as err:
        raise Damaged(f"{MANIFEST} is damaged ({err})") from None
    if manifest.format <= FORMAT and manifest.step != parse_name(directory)[0]:
        raise Damaged(f"{MANIFEST} is that of step {manifest.step}")
    return manifest


def passed_over(directory: Path, err: Damaged | OSError) -> str:
    """The sentence about a checkpoint that is not whole."""
    return f"Skipped the checkpoint {directory}: {reason_of(err)}. Going on from the one before."


def reason_of(err: Exception) -> str:
    """What is wrong, without a full stop."""
    return (err.strerror if isinstance(err, OSError) else "") or str(err) or type(err).__name__


def prove(directory: Path, pieces: Sequence[Piece]) -> None:
    """Hold files against their digests, several at a time and none of them in memory.

    Raises:
        Damaged: one has another digest or size.
        OSError: one cannot be read.
    """

    def prove_one(piece: Piece) -> None:
        _demand_size(directory / piece.file, piece.size_bytes)
        with (directory / piece.file).open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        _demand_digest(piece.file, found, piece.sha256)

    with ThreadPoolExecutor(_PROVEN_AT_ONCE, "ddp-digest") as threads:
        for _ in threads.map(prove_one, pieces):
            pass


def _demand_size(file: Path, wanted: int) -> None:
    """Look at the size before the content is read, which may be more than the memory holds."""
    size_bytes = file.stat().st_size
    if size_bytes != wanted:
        raise Damaged(f"{file.name} has {size_bytes} of {wanted} bytes")


def _demand_digest(file: str, sha256: str, wanted: str) -> None:
    if sha256 != wanted:
        raise Damaged(f"{file} does not have the digest that {MANIFEST} names")


def looks_whole(directory: Path) -> Manifest | None:
    """Cheap version of :func:`read` for pruning: sizes, not digests; the manifest, or None of one that is torn."""
    try:
        manifest = _manifest(directory)
        for each in manifest.files:
            _demand_size(directory / each.file, each.size_bytes)
    except Exception:  # noqa: BLE001 - as in read
        return None
    return manifest


def _install(temporary: Path, target: Path) -> None:
    """Give a finished directory its name; one of that name stays readable until the new one has it."""
    if target.exists():
        old = target.with_name(f"{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    temporary.rename(target)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def parse_name(directory: Path) -> tuple[int, bool]:
    """Step of a checkpoint's directory, and whether it is one that was replaced."""
    match = _NAME.fullmatch(directory.name)
    if match is None:
        raise ValueError(f"{directory.name} is not the name of a checkpoint")
    return int(match[1]), match[2] is not None
