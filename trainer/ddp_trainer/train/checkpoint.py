"""Checkpoints on a disk: written whole or not at all, proven by digests, loaded without running code.

A checkpoint is a directory ``step-00000420`` of a payload and a manifest. It comes into being under a temporary
name, is synced, manifest last, and is renamed; only then are older ones removed. Saving has two halves, ``pack``
that needs the weights to stand still and ``write`` that does not, so that the second may move off the training
thread. Loading never trusts a payload whose digest the manifest does not confirm, and unpickles nothing but tensors
and plain values (``weights_only``).
"""

from __future__ import annotations

import hashlib
import io
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from ddp_trainer.train.claim import Claim
from ddp_trainer.train.durable import sync_directory, write_synced
from ddp_trainer.train.errors import CheckpointMismatch
from ddp_trainer.train.manifest import Manifest

PAYLOAD: Final = "state.pt"
MANIFEST: Final = "manifest.json"
_NAME: Final = re.compile(r"step-(\d{8,})(\.old)?")
_TEMPORARY: Final = ".tmp-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory, its digest checked."""

    manifest: Manifest
    payload: bytes


class Damaged(Exception):
    """A checkpoint that is not whole; the message is the reason."""


class CheckpointDirectory:
    """The checkpoints of one run, as one writer sees them."""

    def __init__(self, path: Path, *, keep: int, claim: Claim) -> None:
        self.path = path
        self._keep = keep
        self._claim = claim

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

    def newest(self, skipped: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint; each damaged one on the way is reported in a sentence."""
        for directory in self._directories():
            try:
                return read(directory)
            except (Damaged, OSError) as err:
                reason = err.strerror or str(err) if isinstance(err, OSError) else str(err)
                skipped(f"Skipped the checkpoint {directory}: {reason}. Going on from the one before.")
        return None

    def write(self, manifest: Manifest, payload: bytes) -> None:
        """Make a checkpoint durable and remove the ones that are no longer kept.

        Raises:
            StaleGeneration: another writer has claimed the directory; nothing was replaced.
            OSError: the disk is full or fails; nothing was replaced.
        """
        target = self.path / f"step-{manifest.step:08d}"
        temporary = self.path / f"{_TEMPORARY}{target.name}-{self._claim.token}"
        try:
            temporary.mkdir(parents=True)
            write_synced(temporary / PAYLOAD, payload)
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

    def _prune(self, newest: int) -> None:
        """Keep the newest ``keep`` whole ones up to the one just written; what stands after it is not ours to judge."""
        kept = 0
        for directory in self._directories():
            step, old = _parse(directory)
            if step > newest:
                continue
            if not old and kept < self._keep and _looks_whole(directory):
                kept += 1
            else:
                shutil.rmtree(directory, ignore_errors=True)

    def _directories(self) -> Iterator[Path]:
        """Newest first; of the same step, the one that was replaced comes second."""
        try:
            found = [entry for entry in self.path.iterdir() if _NAME.fullmatch(entry.name)]
        except FileNotFoundError:
            return iter(())
        return iter(sorted(found, key=lambda entry: (_parse(entry)[0], not _parse(entry)[1]), reverse=True))


def pack(state: dict[str, Any]) -> bytes:
    """The state as a payload; tensors and plain values only."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack(checkpoint: Checkpoint) -> dict[str, Any]:
    """The state in a payload, on the CPU.

    Raises:
        CheckpointMismatch: the payload is whole, but holds something that must not be loaded.
    """
    try:
        state = torch.load(io.BytesIO(checkpoint.payload), map_location="cpu", weights_only=True)
    except Exception as err:
        raise CheckpointMismatch(
            f"The checkpoint of step {checkpoint.manifest.step} holds what is not loaded for safety: "
            f"{str(err).splitlines()[0]}",
            hint="Give another --checkpoint-dir.",
        ) from err
    return state  # type: ignore[no-any-return] # torch.load is untyped


def digest(payload: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(payload).hexdigest()


def read(directory: Path) -> Checkpoint:
    """One checkpoint, proven whole.

    Raises:
        Damaged: a file is missing, or differs from what the manifest says.
        OSError: the disk fails.
    """
    try:
        manifest = Manifest.from_json((directory / MANIFEST).read_text())
        payload = (directory / PAYLOAD).read_bytes()
    except FileNotFoundError as err:
        raise Damaged(f"{Path(err.filename).name} is missing") from None
    except ValueError as err:
        raise Damaged(f"{MANIFEST} is damaged ({err})") from None
    if len(payload) != manifest.size_bytes:
        raise Damaged(f"{PAYLOAD} has {len(payload)} of {manifest.size_bytes} bytes")
    if digest(payload) != manifest.sha256:
        raise Damaged(f"{PAYLOAD} does not have the digest that {MANIFEST} names")
    return Checkpoint(manifest, payload)


def _looks_whole(directory: Path) -> bool:
    """Cheap version of :func:`read` for pruning: sizes, not digests."""
    try:
        manifest = Manifest.from_json((directory / MANIFEST).read_text())
        return (directory / PAYLOAD).stat().st_size == manifest.size_bytes
    except (OSError, ValueError):
        return False


def _install(temporary: Path, target: Path) -> None:
    """Give a finished directory its name; one of that name stays readable until the new one has it."""
    if target.exists():
        old = target.with_name(f"{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    temporary.rename(target)


def _parse(directory: Path) -> tuple[int, bool]:
    match = _NAME.fullmatch(directory.name)
    if match is None:
        raise ValueError(f"{directory.name} is not the name of a checkpoint")
    return int(match[1]), match[2] is not None
