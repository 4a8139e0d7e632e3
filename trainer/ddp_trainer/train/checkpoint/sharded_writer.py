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
from pathlib import Path
from typing import Final, Protocol

from ddp_trainer.common.constants import CheckpointScope
from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.net import strict_json
from ddp_trainer.train.checkpoint.checkpoint_files import CheckpointDirectory
from ddp_trainer.train.checkpoint.manifest import Manifest, Piece
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.durable_files import SyncedStream, write_durably

_LOOK_SECONDS: Final = 0.02
"""Interval between checks for notes, in seconds."""


def write_together(config: Config) -> bool:
    """Return True if the ranks of this run write sharded checkpoints when they see one directory."""
    return config.spreads and config.checkpoint_dir is not None and config.checkpoint_scope is not CheckpointScope.POD


class Target(Protocol):
    """Destination of a rank's part of a checkpoint."""

    def write(self, draft: Manifest, archive: Archive, /) -> Manifest:
        """Write the part durably; see :meth:`.CheckpointDirectory.write`."""
        ...


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

    def begin(self, step: int, directory: CheckpointDirectory | None) -> Callable[[], Target | None] | None:
        """Agree on the temporary directory of a step's checkpoint; every rank must call it at the same time.

        Returns:
            A function that returns this rank's target, or None if this rank writes no part. On the first rank, it
            raises OSError if the directory cannot be created; the other ranks then get None. Instead of a function,
            None if a rank does not see the directory.
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
            return lambda: _raised(failure)
        if sum(self.group.gather(int(not place.is_dir()))):
            return None
        return lambda: self._target(place, directory)

    def _target(self, place: Path, directory: CheckpointDirectory | None) -> Target | None:
        if self.group.rank == 0:
            assert directory is not None  # noqa: S101 - rank 0 has created it
            others, group = range(1, self.layout.replica), self.group
            return Coordinator(directory, others, self.timeout_seconds, lambda: group.is_broken)
        return Participant(place, self.group.rank) if self.writes else None


def _raised(failure: OSError | None) -> None:
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class Participant:
    """Target of a rank that writes its pieces but no manifest."""

    place: Path
    rank: int

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        """Write the pieces, then a note with their size and digest, or with the error.

        Raises:
            OSError: The disk is full or fails, or the first rank has given up and removed the directory.
        """
        file = _file(self.rank)
        try:
            with SyncedStream(self.place / file) as stream:
                archive.write_to(stream)
        except OSError as err:
            with suppress(OSError):
                (self.place / file).unlink()  # makes room for the note on a full disk
            write_durably(_note(self.place, self.rank), json.dumps({"failed": err.strerror or str(err)}).encode())
            raise
        piece = Piece(file=file, sha256=stream.sha256, size_bytes=stream.size_bytes)
        write_durably(_note(self.place, self.rank), json.dumps(asdict(piece)).encode())
        return replace(draft, sha256=piece.sha256, size_bytes=piece.size_bytes)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Target of the first rank, which writes its own part and publishes the checkpoint."""

    directory: CheckpointDirectory
    others: Sequence[int]
    timeout_seconds: float
    is_in_vain: Callable[[], bool] = lambda: False
    """Returns True if a rank is lost, so that its part may never arrive. The coordinator then stops waiting, because
    the next save waits for this one."""

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        """Write this rank's part, wait for the other ranks, then publish the checkpoint.

        Raises:
            StaleGeneration: Another writer has claimed the directory; nothing was replaced.
            OSError: The disk fails, or another rank's part is missing; nothing was replaced.
        """
        return self.directory.write(draft, archive, self._gathered)

    def _gathered(self, place: Path) -> Sequence[Piece]:
        """Wait for the pieces of the other ranks and return them.

        Raises:
            OSError: A rank has failed, is lost, or has not written within the timeout.
        """
        found: dict[int, Piece] = {}
        seen, until = 0, time.monotonic() + self.timeout_seconds
        while missing := [rank for rank in self.others if rank not in found]:
            found.update((rank, piece) for rank in missing if (piece := _noted(place, rank)) is not None)
            if len(found) < len(self.others) and self.is_in_vain():
                raise OSError(errno.ECANCELED, "a rank was lost while the ranks wrote their pieces")
            written = sum(_sizes(place, self.others)) + len(found)
            if written > seen:
                seen, until = written, time.monotonic() + self.timeout_seconds
            elif time.monotonic() > until:
                raise OSError(
                    errno.ETIMEDOUT,
                    f"rank {missing[0]} has written nothing of its pieces for {self.timeout_seconds:g} s",
                )
            time.sleep(_LOOK_SECONDS)
        for rank in self.others:
            _note(place, rank).unlink()
        return [found[rank] for rank in self.others]


def _noted(place: Path, rank: int) -> Piece | None:
    try:
        note = strict_json.loads(_note(place, rank).read_bytes())
        if isinstance(note, dict) and "failed" in note:
            raise OSError(errno.EIO, f"rank {rank} could not write its pieces: {note['failed']}")
        return Piece.of(note)
    except FileNotFoundError:
        return None
    except (strict_json.Malformed, ValueError) as error:
        raise OSError(errno.EIO, f"{_note(place, rank).name} is damaged: {error}") from None


def _sizes(place: Path, ranks: Sequence[int]) -> Iterator[int]:
    for rank in ranks:
        try:
            yield (place / _file(rank)).stat().st_size
        except FileNotFoundError:
            yield 0


def _file(rank: int) -> str:
    return f"pieces-{rank:05d}.pt"


def _note(place: Path, rank: int) -> Path:
    return place / f"note-{rank:05d}.json"
