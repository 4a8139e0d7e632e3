"""The newest whole checkpoint, where several ranks see the directory: each holds a share of the files against digests.

One rank would read all that many have written, while the others wait for it at a collective. So the first rank names
what it finds, newest first, and all of them prove it together, or it is passed over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ddp_trainer.train.checkpoint.checkpoint_files import (
    Checkpoint,
    CheckpointDirectory,
    Damaged,
    directories,
    looks_whole,
    passed_over,
    prove,
    read,
    reason_of,
)
from ddp_trainer.train.distributed.group import Group


def newest_together(
    directory: CheckpointDirectory | None, group: Group, skipped: Callable[[str], None]
) -> Checkpoint | None:
    """The newest whole checkpoint, on the rank that has the directory; every rank must call it.

    Each damaged one on the way is reported there in a sentence.
    """
    found = iter(()) if directory is None else directories(directory.path)
    while True:
        here = next(found, None)
        named = group.broadcast(b"" if here is None else bytes(here), 0)
        if not named:
            return None
        place = Path(os.fsdecode(named))
        try:
            checkpoint = _proven(place, here, group)
        except (Damaged, OSError) as err:
            if here is not None:
                skipped(passed_over(here, err))
            continue
        if checkpoint is not None or here is None:
            return checkpoint


def _proven(place: Path, here: Path | None, group: Group) -> Checkpoint | None:
    """On the rank that has the directory, the checkpoint; on all, Damaged or OSError where any rank found damage."""
    manifest = looks_whole(place)
    sees = manifest is not None and bool(manifest.pieces)
    if sum(group.gather(int(sees))) < group.world_size or manifest is None:
        return _agreed(lambda: None if here is None else read(here), group)

    def prove_share() -> Checkpoint:
        prove(place, manifest.files[group.rank :: group.world_size])
        return Checkpoint(manifest, b"", place)

    checkpoint = _agreed(prove_share, group)
    return checkpoint if here is not None else None


def _agreed(look: Callable[[], Checkpoint | None], group: Group) -> Checkpoint | None:
    """What this rank found; raises on every rank what the first one raised that found damage."""
    found, reason = None, b""
    try:
        found = look()
    except Exception as err:  # noqa: BLE001 - the other ranks wait at a collective for this rank's answer
        reason = reason_of(err).encode(errors="replace")
    told = group.gather(len(reason))
    if any(told):
        source = next(rank for rank, length in enumerate(told) if length)
        raise Damaged(group.broadcast(reason, source).decode())
    return found
