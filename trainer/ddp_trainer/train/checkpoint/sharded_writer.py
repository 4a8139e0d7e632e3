"""Write one checkpoint with several ranks: each writes a file with its pieces, and the first rank publishes them.

:meth:`ShardedWriter.begin` creates a temporary directory on the first rank and broadcasts its path. Each rank then
writes its snapshot there, independently and beside the training. A rank that has ended writes a note with the size and
digest of its file, or with the error. The first rank waits for all notes, writes the manifest and renames the
directory. The files of a rank that died are never published: the directory keeps its temporary name, and the next
writer removes it. Ranks communicate only through files, because their threads progress at different speeds and the
store may fail while the disk works. This requires a directory that all ranks see. Without one, the complete state is
gathered and one rank writes it.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

from ddp_trainer.common import strict_json
from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.process.atomic_files import FsyncStream, atomic_write
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory, reason_of
from ddp_trainer.train.checkpoint.manifest import CheckpointFile, Manifest
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group

_POLL_SECONDS: Final = 0.02
"""Interval between checks for notes, in seconds."""


def writes_sharded_checkpoint(config: Config) -> bool:
    """Return True if the ranks of this run write sharded checkpoints when they see one directory."""
    return (
        config.is_model_sharded
        and config.checkpoint_dir is not None
        and config.checkpoint_scope is not CheckpointScope.POD
    )


Write: TypeAlias = Callable[[Manifest, Archive], Manifest]
"""Writes a rank's part of a checkpoint durably; see :meth:`.CheckpointDirectory.write`."""


@dataclass(frozen=True, slots=True)
class ShardedWriter:
    """Starts checkpoints that the ranks of one group write together."""

    layout: Layout
    group: Group
    timeout_seconds: float
    """Time that the first rank waits for other ranks whose files do not grow."""

    @property
    def writes(self) -> bool:
        """True if this rank writes a part: the ranks of the first replica hold the complete state."""
        return self.group.rank < self.layout.replica

    def begin(self, step: int, directory: CheckpointDirectory | None) -> Callable[[], Write | None] | None:
        """Agree on the temporary directory of a step's checkpoint; every rank must call it at the same time.

        Returns:
            A function that returns how this rank writes its part, or None if it writes none. On the first rank, the
            function raises OSError if the directory cannot be created; the other ranks then get None. Instead of the
            function, None if a rank does not see the directory.
        """
        failure: OSError | None = None
        path = b""
        if self.group.rank == 0 and directory is not None:
            try:
                path = bytes(directory.prepare(step))
            except OSError as err:
                failure = err
        place = Path(os.fsdecode(self.group.broadcast(path, 0)))
        if place == Path():
            return lambda: _raise_if_failed(failure)
        if sum(self.group.gather(int(not place.is_dir()))):
            return None
        return lambda: self._write(place, directory)

    def _write(self, place: Path, directory: CheckpointDirectory | None) -> Write | None:
        if directory is not None:
            others = partial(await_pieces, range(1, self.layout.replica), self.timeout_seconds, self.group)
            return partial(directory.write, others=others)
        return partial(write_pieces, place, self.group.rank) if self.writes else None


def _raise_if_failed(failure: OSError | None) -> None:
    if failure is not None:
        raise failure


def write_pieces(place: Path, rank: int, draft: Manifest, archive: Archive) -> Manifest:
    """Write a rank's pieces, then a note with their size and digest, or with the error.

    Args:
        place: Temporary directory of the checkpoint.
        rank: Rank that the pieces belong to; not the first, which writes the manifest.
        draft: Manifest without digest and size.
        archive: Pieces to write.

    Raises:
        OSError: The disk is full or fails, or the first rank has given up and removed the directory. Every other error
            is raised too, after the note.
    """
    file = _file(rank)
    try:
        with FsyncStream(place / file) as stream:
            archive.write_to(stream)
    except Exception as err:
        with suppress(OSError):
            (place / file).unlink()  # makes room for the note on a full disk
        atomic_write(_result_path(place, rank), json.dumps({"failed": reason_of(err)}).encode())
        raise
    piece = CheckpointFile(file=file, sha256=stream.sha256, size_bytes=stream.size_bytes)
    atomic_write(_result_path(place, rank), json.dumps(asdict(piece)).encode())
    return replace(draft, sha256=piece.sha256, size_bytes=piece.size_bytes)


def await_pieces(others: Sequence[int], timeout_seconds: float, group: Group, place: Path) -> Sequence[CheckpointFile]:
    """Wait for the pieces of the other ranks and return them.

    Args:
        others: Ranks that write pieces.
        timeout_seconds: Time to wait while their files do not grow.
        group: The ranks. If one is lost, its part may never arrive, and the next save waits for this one.
        place: Temporary directory of the checkpoint.

    Raises:
        OSError: A rank has failed, is lost, or has not written within the timeout.
    """
    found: dict[int, CheckpointFile] = {}
    seen, until = 0, time.monotonic() + timeout_seconds
    while missing := [rank for rank in others if rank not in found]:
        found.update((rank, piece) for rank in missing if (piece := _read_result(place, rank)) is not None)
        if len(found) < len(others) and group.is_broken:
            raise OSError(errno.ECANCELED, "a rank was lost while the ranks wrote their pieces")
        written = sum(_sizes(place, others)) + len(found)
        if written > seen:
            seen, until = written, time.monotonic() + timeout_seconds
        elif time.monotonic() > until:
            raise OSError(
                errno.ETIMEDOUT, f"rank {missing[0]} has written nothing of its pieces for {timeout_seconds:g} s"
            )
        time.sleep(_POLL_SECONDS)
    for rank in others:
        _result_path(place, rank).unlink()
    return [found[rank] for rank in others]


def _read_result(place: Path, rank: int) -> CheckpointFile | None:
    try:
        note = strict_json.loads(_result_path(place, rank).read_bytes())
        if isinstance(note, dict) and "failed" in note:
            raise OSError(errno.EIO, f"rank {rank} could not write its pieces: {note['failed']}")
        piece: CheckpointFile = strict_json.parse(CheckpointFile, note)
    except FileNotFoundError:
        return None
    except (strict_json.DecodeError, ValueError) as error:
        raise OSError(errno.EIO, f"{_result_path(place, rank).name} is damaged: {error}") from None
    return piece


def _sizes(place: Path, ranks: Sequence[int]) -> Iterator[int]:
    for rank in ranks:
        try:
            yield (place / _file(rank)).stat().st_size
        except FileNotFoundError:
            yield 0


def _file(rank: int) -> str:
    return f"pieces-{rank:05d}.pt"


def _result_path(place: Path, rank: int) -> Path:
    return place / f"note-{rank:05d}.json"
