"""One checkpoint that several ranks write: each a file with its pieces, and the first rank publishes them as a whole.

The first rank makes the unfinished directory and tells the others its name, so that each writes its snapshot there, by
itself and beside the training. A rank that is through leaves a note of its file's size and digest, or of why there is
none; the first one waits for all notes, then writes the manifest and gives the directory its name. What a rank that
died leaves is never published: the directory keeps its temporary name, and the next writer sweeps it up. Ranks speak
by files alone, since each of their threads may be at another place, and a store may be away when the disk is not.

That takes a directory which all ranks see. Where one does not, the whole state is gathered, and written as by one.
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
"""Between looks for notes."""


def write_together(config: Config) -> bool:
    """Whether the ranks of this run write checkpoints together, wherever they see one directory."""
    return config.spreads and config.checkpoint_dir is not None and config.checkpoint_scope is not CheckpointScope.POD


class Target(Protocol):
    """Where a rank's part of a checkpoint goes."""

    def write(self, draft: Manifest, archive: Archive, /) -> Manifest:
        """Make it durable; see :meth:`CheckpointDirectory.write`."""
        ...


@dataclass(frozen=True, slots=True)
class ShardedWriter:
    """How the ranks of one group write checkpoints together."""

    layout: Layout
    group: Group
    timeout_seconds: float
    """How long the first rank waits for others whose files do not grow."""

    @property
    def writes(self) -> bool:
        """Whether this rank has a part: those of the first replica hold all of the state."""
        return self.group.rank < self.layout.replica

    def begin(self, step: int, directory: CheckpointDirectory | None) -> Callable[[], Target | None] | None:
        """Agree on where this step's checkpoint comes into being; every rank must call it at the same time.

        Returns:
            What gives this rank's target, or None where it has no part; None where ranks do not see one directory.

        Raises:
            OSError: on the first rank, the directory cannot be made; the others have nothing to write then.
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
            assert directory is not None  # noqa: S101 - it has been made there
            others, group = range(1, self.layout.replica), self.group
            return Coordinator(directory, others, self.timeout_seconds, lambda: group.is_broken)
        return Participant(place, self.group.rank) if self.writes else None


def _raised(failure: OSError | None) -> None:
    if failure is not None:
        raise failure


@dataclass(frozen=True, slots=True)
class Participant:
    """A rank that writes its pieces, and no manifest."""

    place: Path
    rank: int

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        """Write the pieces, and then a note of them.

        Raises:
            OSError: the disk is full or fails, or the first rank has given up; the first rank is told.
        """
        file = _file(self.rank)
        try:
            with SyncedStream(self.place / file) as stream:
                archive.write_to(stream)
        except OSError as err:
            with suppress(OSError):
                (self.place / file).unlink()  # a full disk has room for the note then
            write_durably(_note(self.place, self.rank), json.dumps({"failed": err.strerror or str(err)}).encode())
            raise
        piece = Piece(file=file, sha256=stream.sha256, size_bytes=stream.size_bytes)
        write_durably(_note(self.place, self.rank), json.dumps(asdict(piece)).encode())
        return replace(draft, sha256=piece.sha256, size_bytes=piece.size_bytes)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The rank that writes its own part, and publishes what all have written."""

    directory: CheckpointDirectory
    others: Sequence[int]
    timeout_seconds: float
    is_in_vain: Callable[[], bool] = lambda: False
    """A rank was lost, whose part may never come: those that are left are not to wait for it with the next save."""

    def write(self, draft: Manifest, archive: Archive) -> Manifest:
        """Write, wait for the others, publish.

        Raises:
            StaleGeneration: another writer has claimed the directory; nothing was replaced.
            OSError: the disk fails here, or another rank's part is not there; nothing was replaced.
        """
        return self.directory.write(draft, archive, self._gathered)

    def _gathered(self, place: Path) -> Sequence[Piece]:
        """What the others have written, once they have. Raises OSError where one has not."""
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
