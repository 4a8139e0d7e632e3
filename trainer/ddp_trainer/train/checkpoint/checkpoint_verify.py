"""Verify the digests of a checkpoint with several ranks: before it is used, or while it is used.

In :func:`verify_latest_checkpoint`, the first rank names its checkpoints, newest first. All ranks verify each one
together, a share of the files per rank, until one is valid. One rank alone would read the files of all ranks while the
others wait at a collective. With :class:`BackgroundVerification`, ranks load a checkpoint and train from it meanwhile.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_broadcast import file_identity
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory, CorruptCheckpoint, reason_of
from ddp_trainer.train.checkpoint.snapshot import lower_thread_priority
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import GroupEnded

_IDENTITY_BYTES: Final = 7
"""Bytes of the digest of a file's identity, so that it fits into an int64."""


class _Health(IntEnum):
    SOUND = 0
    PENDING = 1
    DAMAGED = 2


class BackgroundVerification:
    """Verification of a checkpoint from which the ranks of a group train already.

    On each machine that reads the files, one rank computes the digests, in a thread of low priority. What is trained
    meanwhile must not leave the group: :meth:`agree` first.
    """

    def __init__(self, checkpoint: Checkpoint, group: Group, alarm: Callable[[str], None]) -> None:
        """Select the ranks that verify; every rank must call it.

        Args:
            checkpoint: The checkpoint, as :func:`.checkpoint_broadcast.from_rank` returned it.
            group: The ranks that load it.
            alarm: Receives a sentence about damage, on the rank that finds it.
        """
        self._checkpoint, self._group, self._alarm = checkpoint, group, alarm
        self._result = _Health.SOUND
        self._reason = ""
        self._is_loaded = threading.Event()
        self._thread: threading.Thread | None = None
        directory, own = checkpoint.directory, 0
        if directory is not None:
            own = int.from_bytes(sha256(file_identity(directory).encode()).digest()[:_IDENTITY_BYTES])
        if group.gather(own).index(own) == group.rank and directory is not None:
            self._result = _Health.PENDING
            # The start of a thread waits for page faults of others, so it comes before the load.
            self._thread = threading.Thread(target=self._run_low_priority, name="ddp-digest", daemon=True)
            self._thread.start()

    def start(self) -> None:
        """Start to verify, after the state was loaded: both together take longer on few cores."""
        self._is_loaded.set()

    def agree(self, *, wait: bool) -> bool:
        """Return True once the ranks have found all digests right; every rank must call it.

        Args:
            wait: Wait until all ranks have computed their digests.

        Raises:
            GroupEnded: The checkpoint is damaged, and so is the state of every rank. The next group verifies it first,
                and skips it.
        """
        if wait and self._thread is not None:
            self._thread.join()
        result = self._result
        results = self._group.gather(result)
        if _Health.DAMAGED in results:
            raise self._damage(is_found_here=result is _Health.DAMAGED)
        return _Health.PENDING not in results

    def raise_if_damaged(self, err: Exception) -> None:
        """Verify on this rank now, because the state has led to an error.

        Raises:
            GroupEnded: The checkpoint is damaged.
        """
        self._is_loaded.set()
        if self._thread is not None:
            self._thread.join()
        else:
            self._verify()
        if self._result is _Health.DAMAGED:
            raise self._damage(is_found_here=True) from err

    def _damage(self, *, is_found_here: bool) -> GroupEnded:
        checkpoint = self._checkpoint
        if is_found_here:
            self._alarm(f"{checkpoint.directory} is damaged, and training had started from it: {self._reason}.")
        step = checkpoint.manifest.step
        return GroupEnded(f"The ranks had started from the checkpoint of step {step}, which is damaged.")

    def _run_low_priority(self) -> None:
        lower_thread_priority()
        self._is_loaded.wait()
        self._verify()

    def _verify(self) -> None:
        if (directory := self._checkpoint.directory) is None:
            return
        try:
            checkpoint_files.verify_files(directory, self._checkpoint.manifest.files)
        except Exception as err:  # noqa: BLE001 - a state that could not be verified must not be used either
            with suppress(OSError):
                (directory / checkpoint_files.SUSPECT).touch()
            self._reason = reason_of(err)
            self._result = _Health.DAMAGED
        else:
            self._result = _Health.SOUND


def verify_latest_checkpoint(
    directory: CheckpointDirectory | None, group: Group, skipped: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest valid checkpoint on the rank that has the directory; every rank must call it.

    Args:
        directory: The directory on the first rank; None on the others.
        group: The ranks.
        skipped: Receives a sentence for each damaged checkpoint, on the rank that has the directory.

    Returns:
        The checkpoint, or None on other ranks and if no checkpoint is valid.
    """
    if directory is not None:
        directory.fetch(skipped)
    found = iter(()) if directory is None else checkpoint_files.directories(directory.path)
    while True:
        here = next(found, None)
        named = group.broadcast(b"" if here is None else bytes(here), 0)
        if not named:
            return None
        place = Path(os.fsdecode(named))
        try:
            checkpoint = _verify_checkpoint(place, here, group)
        except (CorruptCheckpoint, OSError) as err:
            if here is not None:
                skipped(checkpoint_files.passed_over(here, err))
            continue
        if checkpoint is not None or here is None:
            return checkpoint


def _verify_checkpoint(place: Path, here: Path | None, group: Group) -> Checkpoint | None:
    """Return the verified checkpoint on the rank that has the directory, else None.

    Raises:
        CorruptCheckpoint: A rank found damage or could not read a file; raised on every rank.
    """
    manifest = checkpoint_files.manifest_if_complete(place)
    sees = manifest is not None and bool(manifest.pieces)
    if sum(group.gather(int(sees))) < group.world_size or manifest is None:
        return _agree_on_result(lambda: None if here is None else checkpoint_files.read(here), group)

    def verify_local_files() -> Checkpoint:
        checkpoint_files.verify_files(place, manifest.files[group.rank :: group.world_size])
        return Checkpoint(manifest, place)

    checkpoint = _agree_on_result(verify_local_files, group)
    return checkpoint if here is not None else None


def _agree_on_result(verify: Callable[[], Checkpoint | None], group: Group) -> Checkpoint | None:
    """Return the result of ``verify``.

    Raises:
        CorruptCheckpoint: ``verify`` failed on a rank. Every rank gets the reason of the lowest such rank.
    """
    found, reason = None, b""
    try:
        found = verify()
    except Exception as err:  # noqa: BLE001 - the other ranks wait at a collective for this rank's answer
        reason = reason_of(err).encode(errors="replace")
    lengths = group.gather(len(reason))
    if any(lengths):
        source = next(rank for rank, length in enumerate(lengths) if length)
        raise CorruptCheckpoint(group.broadcast(reason, source).decode())
    return found
