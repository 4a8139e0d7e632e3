"""A board: the numbers of one process in a file that outlives it.

::

    offset   0  magic, 8 bytes
             8  schema, 8 bytes: digest of the names of the cells
            16  pid, uint64
            24  start of that process, uint64, clock ticks since boot (with the pid: who it was, for ever)
            32  revision, uint64: odd while cells are being changed together
            40  identity, 984 bytes: JSON object, padded with NUL
          1024  cells, float64

Byte order is the machine's: writer and reader share a pod. The writer maps the file; storing an aligned double is one
instruction, so no number is ever torn, and the revision tells a reader whether numbers of one step belong together.
The reader does not map but reads, so that nothing done to the file can kill it with SIGBUS. The writer is safe from
that too: the file's blocks are allocated before they are mapped, and a file is replaced, never truncated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.families.family import Source
from ddp_trainer.metrics.families.registry import families_of
from ddp_trainer.metrics.storage.process import ProcessId

MAGIC: Final = b"DDPBRD01"
HEADER: Final = struct.Struct("8s8sQQQ")
IDENTITY: Final = slice(40, 1024)
CELLS_AT: Final = 1024
CELL_BYTES: Final = 8

ABSENT_BITS: Final = 0x7FF8_0000_0000_0DDB
"""Bits of a cell that was never set: a NaN that no arithmetic makes, so that a loss of NaN can still be told."""
ABSENT: Final = struct.pack("Q", ABSENT_BITS)
(ABSENT_NUMBER,) = struct.unpack("d", ABSENT)
"""What a cell is set to that is to be absent."""

READ_ATTEMPTS: Final = 5
"""Reads of a board that changes meanwhile; writing a step takes a microsecond, so a second read nearly always does."""


class StaleBoard(Exception):
    """The file is no board of this version: damaged, or :class:`OtherVersion`."""


class OtherVersion(StaleBoard):
    """The board is whole, and its cells are not ours: another version of this package has written it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which cell holds which series."""

    initial: Mapping[str, float | None]
    """Series key → first value (None is absent), in the order of the cells."""

    @classmethod
    def of(cls, source: Source) -> Layout:
        """The layout that the catalogue gives the boards of ``source``."""
        return cls({s.key: family.initial for family in families_of(source) for s in family.series()})

    @property
    def size(self) -> int:
        """Bytes of a file of this layout."""
        return CELLS_AT + CELL_BYTES * len(self.initial)

    @property
    def schema(self) -> bytes:
        """Eight bytes that change when the cells do."""
        return hashlib.sha256("\n".join(self.initial).encode()).digest()[:8]

    def index(self, key: str) -> int:
        """The cell of a series. Raises ValueError where the catalogue has no such series."""
        return list(self.initial).index(key)

    def blank(self) -> bytes:
        """A file in which nothing has happened."""
        cells = b"".join(ABSENT if value is None else struct.pack("d", value) for value in self.initial.values())
        return HEADER.pack(MAGIC, self.schema, 0, 0, 0).ljust(CELLS_AT, b"\0") + cells


RANK: Final = Layout.of(Source.RANK_BOARD)
AGENT: Final = Layout.of(Source.AGENT_BOARD)


class Board:
    """A board, open for writing."""

    __slots__ = ("_map", "cells", "revision")

    cells: memoryview[float]
    """The numbers, by :meth:`Layout.index`."""
    revision: memoryview[int]
    """One number; see :meth:`changing`."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self._use(mapping)

    def _use(self, mapping: mmap.mmap) -> None:
        self._map = mapping
        self.cells = memoryview(mapping)[CELLS_AT:].cast("d")
        self.revision = memoryview(mapping)[32:40].cast("Q")

    @classmethod
    def open(cls, path: Path, layout: Layout) -> Board:
        """Map the board at ``path`` with all it holds; where there is none, or no sound one, put a blank one there.

        Raises OSError where that cannot be done: no such directory, no space, read-only.
        """
        descriptor = _open_sound(path, layout)
        if descriptor is None:
            descriptor = _open_blank(path, layout)
        try:
            # Without its blocks allocated, a store into the mapping of a file on a full disk is answered by SIGBUS.
            os.posix_fallocate(descriptor, 0, layout.size)
            return cls(mmap.mmap(descriptor, layout.size))
        finally:
            os.close(descriptor)

    @classmethod
    def existing(cls, path: Path, layout: Layout) -> Board | None:
        """Map the board at ``path``, which is another's, to add to what it holds; None where no sound one is there.

        Raises OSError where it cannot be mapped.
        """
        descriptor = _open_sound(path, layout)
        if descriptor is None:
            return None
        try:
            return cls(mmap.mmap(descriptor, layout.size))
        finally:
            os.close(descriptor)

    @property
    def owner(self) -> ProcessId:
        """The process that claimed it last."""
        _, _, pid, start, _ = HEADER.unpack_from(self._map)
        return ProcessId(pid, start)

    def claim(self, process: ProcessId) -> None:
        """From now on these are the numbers of ``process``; they go on from where they are."""
        with self.changing():
            struct.pack_into("QQ", self._map, 16, process.pid, process.start)

    @property
    def identity(self) -> dict[str, str | int]:
        """What was last described."""
        return _identity(self._map[IDENTITY])

    def describe(self, identity: Mapping[str, str | int]) -> None:
        """Say who the process is, in words. Raises ValueError where there is no room for that."""
        text = json.dumps(dict(identity)).encode()
        room = IDENTITY.stop - IDENTITY.start
        if len(text) > room:
            raise ValueError(f"An identity of {len(text)} bytes does not fit the {room} bytes of a board.")
        with self.changing():
            self._map[IDENTITY] = text.ljust(room, b"\0")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Let readers know that what is written here belongs together."""
        # `| 1`, because a writer that was killed in here left an odd number behind.
        odd = self.revision[0] | 1
        self.revision[0] = odd
        try:
            yield
        finally:
            self.revision[0] = odd + 1

    def forsake(self) -> None:
        """From now on write into memory of this process alone, as a child that was forked must: the file is its
        parent's.
        """
        copy = mmap.mmap(-1, len(self._map))
        copy[:] = self._map[:]
        self._use(copy)

    def close(self) -> None:
        """Unmap; the file stays."""
        self.cells.release()
        self.revision.release()
        self._map.close()


def _open_sound(path: Path, layout: Layout) -> int | None:
    """A descriptor of the board at ``path``; None where there is none that can be gone on with."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        _check(os.pread(descriptor, layout.size + 1, 0), layout)
    except (StaleBoard, OSError):
        os.close(descriptor)
        return None
    return descriptor


def _open_blank(path: Path, layout: Layout) -> int:
    """A descriptor of a blank board, which appears at ``path`` whole or not at all. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.posix_fallocate(descriptor, 0, layout.size)
        os.pwrite(descriptor, layout.blank(), 0)
        Path(temporary).replace(path)
    except BaseException:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)
        raise
    return descriptor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A board as it was at one moment."""

    owner: ProcessId
    identity: dict[str, str | int]
    values: dict[str, float]
    """Series key → value; a series that was never set is left out."""


def read(path: Path, layout: Layout) -> Snapshot:
    """Read a board that its writer may be writing.

    Should the revision keep changing, or stay odd because the writer was stopped or killed half-way through a step,
    the numbers are taken as they are: each is right, only that some may be of a step later than others.

    Raises StaleBoard where the file is no board of this layout, OSError where there is no file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        for _ in range(READ_ATTEMPTS):
            content = os.pread(descriptor, layout.size + 1, 0)
            _check(content, layout)
            _, _, pid, start, revision = HEADER.unpack_from(content)
            (after,) = struct.unpack("Q", os.pread(descriptor, 8, 32))
            if revision == after and revision % 2 == 0:
                break
    finally:
        os.close(descriptor)
    numbers = struct.unpack_from(f"{len(layout.initial)}d", content, CELLS_AT)
    bits = struct.unpack_from(f"{len(layout.initial)}Q", content, CELLS_AT)
    values = {
        key: number for key, number, word in zip(layout.initial, numbers, bits, strict=True) if word != ABSENT_BITS
    }
    return Snapshot(ProcessId(pid, start), _identity(content[IDENTITY]), values)


def _check(content: bytes, layout: Layout) -> None:
    """Raise StaleBoard unless ``content`` is a whole board of this layout."""
    if content[:6] == MAGIC[:6] and content[:16] != MAGIC + layout.schema:
        raise OtherVersion("Its cells are those of another version.")
    if len(content) != layout.size:
        raise StaleBoard(f"A board has {layout.size} bytes, not {len(content)}.")
    if content[:16] != MAGIC + layout.schema:
        raise StaleBoard(f"A board of this version begins with {MAGIC + layout.schema!r}, not {content[:16]!r}.")


def _identity(text: bytes) -> dict[str, str | int]:
    """The identity in ``text``. Raises StaleBoard where that is no JSON object."""
    try:
        identity = json.loads(text.rstrip(b"\0") or b"{}")
    except ValueError:
        raise StaleBoard("The identity on the board is not JSON.") from None
    if not isinstance(identity, dict):
        raise StaleBoard("The identity on the board is not a JSON object.")
    return identity
