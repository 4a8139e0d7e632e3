"""Find the newest valid checkpoint with several ranks that share a directory.

In :func:`verify_latest_checkpoint`, the first rank names its checkpoints, newest first. All ranks verify each one
together, a share of the files per rank, until one is valid. One rank alone would read the files of all ranks while the
others wait at a collective.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.train.checkpoint import checkpoint_files
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, CheckpointDirectory, CorruptCheckpoint, reason_of
from ddp_trainer.train.distributed.group import Group


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


def _agree_on_result(look: Callable[[], Checkpoint | None], group: Group) -> Checkpoint | None:
    """Return the result of ``look``.

    Raises:
        CorruptCheckpoint: ``look`` failed on a rank. Every rank gets the reason of the lowest such rank.
    """
    found, reason = None, b""
    try:
        found = look()
    except Exception as err:  # noqa: BLE001 - the other ranks wait at a collective for this rank's answer
        reason = reason_of(err).encode(errors="replace")
    told = group.gather(len(reason))
    if any(told):
        source = next(rank for rank, length in enumerate(told) if length)
        raise CorruptCheckpoint(group.broadcast(reason, source).decode())
    return found
