"""Metrics file: the numbers of one process in a memory-mapped file that outlives it.

::

    offset   0  magic, 8 bytes
             8  schema, 8 bytes: digest of the names of the cells
            16  pid, uint64
            24  start of that process, uint64, clock ticks since boot (unique with the pid)
            32  revision, uint64: odd while cells are being changed together
            40  identity, 984 bytes: JSON object, padded with NUL
          1024  cells, float64

The byte order is the machine's, since writer and reader share a pod. :class:`MetricsFile` maps the file for writing.
Storing an aligned double is one instruction, so no number is torn. The revision shows a reader whether numbers belong
to one step. :func:`read` reads the file without mapping it, so changes to the file cannot kill the reader with SIGBUS.
The writer is safe too: the file's blocks are allocated before mapping, and a file is replaced, never truncated.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.metrics.families.family import Source
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.storage.process import ProcessId

MAGIC: Final = b"DDPBRD01"
HEADER: Final = struct.Struct("8s8sQQQ")
IDENTITY: Final = slice(40, 1024)
CELLS_AT: Final = 1024
CELL_BYTES: Final = 8

ABSENT_BITS: Final = 0x7FF8_0000_0000_0DDB
"""Bits of a cell that was never set: a NaN that no arithmetic produces, distinct from a loss of NaN."""
ABSENT: Final = struct.pack("Q", ABSENT_BITS)

READ_ATTEMPTS: Final = 5
"""Reads of a metrics file that changes during a read. Writing a step takes a microsecond, so the second read nearly
always succeeds.
"""


class InvalidMetricsFileError(Exception):
    """The metrics file is damaged, or from another version (:class:`OtherVersion`)."""


class OtherVersion(InvalidMetricsFileError):
    """The metrics file is intact, but another version of this package with other cells has written it."""


@dataclass(frozen=True)
class FileLayout:
    """Assignment of series to the cells of a metrics file."""

    initial: Mapping[str, float | None]
    """Series key → initial value (None for absent), in the order of the cells."""

    @classmethod
    def of(cls, source: Source) -> FileLayout:
        """Return the layout of the metrics files of ``source``, from the catalogue."""
        own = [family for family in FAMILIES if family.source is source]
        return cls({series.key: family.initial for family in own for series in family.series()})

    @property
    def size(self) -> int:
        """Size of a file of this layout, in bytes."""
        return CELLS_AT + CELL_BYTES * len(self.initial)

    @property
    def schema(self) -> bytes:
        """Digest of the cell names, 8 bytes."""
        return hashlib.sha256("\n".join(self.initial).encode()).digest()[:8]

    @functools.cached_property
    def cell_index(self) -> dict[str, int]:
        """Series key → number of its cell."""
        return {key: number for number, key in enumerate(self.initial)}

    def initial_bytes(self) -> bytes:
        """Return the content of a new file."""
        cells = b"".join(ABSENT if value is None else struct.pack("d", value) for value in self.initial.values())
        return HEADER.pack(MAGIC, self.schema, 0, 0, 0).ljust(CELLS_AT, b"\0") + cells


RANK: Final = FileLayout.of(Source.RANK_FILE)
AGENT: Final = FileLayout.of(Source.AGENT_FILE)


class MetricsFile:
    """Metrics file open for writing."""

    __slots__ = ("_layout", "_map", "cells", "revision")

    cells: memoryview[float]
    """Values of the cells, by :attr:`FileLayout.cells`."""
    revision: memoryview[int]
    """Revision number, as a view of length 1; see :meth:`atomic_update`."""

    def __init__(self, descriptor: int, layout: FileLayout) -> None:
        """Map a file of this layout, and close its descriptor."""
        self._layout = layout
        try:
            # Without allocated blocks, a store into the mapping raises SIGBUS if the disk is full.
            os.posix_fallocate(descriptor, 0, layout.size)
            self._use(mmap.mmap(descriptor, layout.size))
        finally:
            os.close(descriptor)

    def _use(self, mapping: mmap.mmap) -> None:
        self._map = mapping
        self.cells = memoryview(mapping)[CELLS_AT:].cast("d")
        self.revision = memoryview(mapping)[32:40].cast("Q")

    @classmethod
    def open(cls, path: Path, layout: FileLayout) -> MetricsFile:
        """Map the metrics file at ``path`` with its current values. A missing or invalid metrics file is replaced by a
        blank one.

        Raises:
            OSError: The metrics file cannot be made: missing directory, no space, read-only.
        """
        descriptor = _open_metrics_file(path, layout)
        return cls(_create_metrics_file(path, layout) if descriptor is None else descriptor, layout)

    @classmethod
    def existing(cls, path: Path, layout: FileLayout) -> MetricsFile | None:
        """Map the metrics file at ``path``, which another process owns, to add to its values.

        Returns:
            The metrics file; None if it is missing or invalid.

        Raises:
            OSError: The file cannot be mapped.
        """
        descriptor = _open_metrics_file(path, layout)
        return None if descriptor is None else cls(descriptor, layout)

    def update(self, values: Mapping[str, float], amounts: Mapping[str, float]) -> None:
        """Store values and add amounts, by series key, so that a reader sees all changes or none."""
        with self.atomic_update():
            self.put(values)
            self.add(amounts)

    def put(self, values: Mapping[str, float | None]) -> None:
        """Store values by series key. A series whose value is None keeps its own."""
        for key, value in values.items():
            if value is not None:
                self.cells[self._layout.cell_index[key]] = value

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add to values by series key. An absent series counts from 0."""
        for key, amount in amounts.items():
            before = self.cells[self._layout.cell_index[key]]
            self.cells[self._layout.cell_index[key]] = amount if math.isnan(before) else before + amount

    @property
    def owner(self) -> ProcessId:
        """The process that last claimed the metrics file."""
        _, _, pid, start, _ = HEADER.unpack_from(self._map)
        return ProcessId(pid, start)

    def claim(self, process: ProcessId) -> None:
        """Make ``process`` the owner. The numbers continue from their current values."""
        with self.atomic_update():
            struct.pack_into("QQ", self._map, 16, process.pid, process.start)

    @property
    def identity(self) -> dict[str, str | int]:
        """The identity from the last call of :meth:`describe`."""
        return _identity(self._map[IDENTITY])

    def describe(self, identity: Mapping[str, str | int]) -> None:
        """Store the identity of the process.

        Raises:
            ValueError: The identity does not fit into the metrics file.
        """
        text = json.dumps(dict(identity)).encode()
        room = IDENTITY.stop - IDENTITY.start
        if len(text) > room:
            raise ValueError(f"An identity of {len(text)} bytes does not fit the {room} bytes of a metrics file.")
        with self.atomic_update():
            self._map[IDENTITY] = text.ljust(room, b"\0")

    @contextlib.contextmanager
    def atomic_update(self) -> Iterator[None]:
        """Mark the cells written in this context as belonging together, for readers."""
        # `| 1`: a writer that was killed within this context leaves an odd number.
        odd = self.revision[0] | 1
        self.revision[0] = odd
        try:
            yield
        finally:
            self.revision[0] = odd + 1

    def detach(self) -> None:
        """Write into private memory from now on. A forked child must do so, because the file belongs to its parent."""
        copy = mmap.mmap(-1, len(self._map))
        copy[:] = self._map[:]
        self._use(copy)

    def close(self) -> None:
        """Unmap the file. It stays on disk."""
        self.cells.release()
        self.revision.release()
        self._map.close()


def _open_metrics_file(path: Path, layout: FileLayout) -> int | None:
    """Return a descriptor of the metrics file at ``path``; None if it is missing or invalid."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        _check(os.pread(descriptor, layout.size + 1, 0), layout)
    except (InvalidMetricsFileError, OSError):
        os.close(descriptor)
        return None
    return descriptor


def _create_metrics_file(path: Path, layout: FileLayout) -> int:
    """Return a descriptor of a new blank metrics file, which appears at ``path`` atomically. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.posix_fallocate(descriptor, 0, layout.size)
        os.pwrite(descriptor, layout.initial_bytes(), 0)
        Path(temporary).replace(path)
    except BaseException:
        os.close(descriptor)
        Path(temporary).unlink(missing_ok=True)
        raise
    return descriptor


@dataclass(frozen=True, slots=True)
class FileSnapshot:
    """Contents of a metrics file at one moment."""

    owner: ProcessId
    identity: dict[str, str | int]
    values: dict[str, float]
    """Series key → value; a series that was never set is left out."""


def read(path: Path, layout: FileLayout) -> FileSnapshot:
    """Read a metrics file while its writer may be writing.

    The revision may keep changing, or stay odd because the writer was stopped or killed within a step. The numbers are
    then returned as read: each is correct, but some may belong to a later step than others.

    Raises:
        InvalidMetricsFileError: The file is not a metrics file of this layout.
        OSError: There is no such file.
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
    return FileSnapshot(ProcessId(pid, start), _identity(content[IDENTITY]), values)


def _check(content: bytes, layout: FileLayout) -> None:
    """Raise InvalidMetricsFileError unless ``content`` is a complete metrics file of this layout."""
    if content[:6] == MAGIC[:6] and content[:16] != MAGIC + layout.schema:
        raise OtherVersion("Its cells are those of another version.")
    if len(content) != layout.size:
        raise InvalidMetricsFileError(f"A metrics file has {layout.size} bytes, not {len(content)}.")
    if content[:16] != MAGIC + layout.schema:
        expected = MAGIC + layout.schema
        raise InvalidMetricsFileError(f"A metrics file of this version begins with {expected!r}, not {content[:16]!r}.")


def _identity(text: bytes) -> dict[str, str | int]:
    """Parse the identity. Raises InvalidMetricsFileError if it is not a JSON object."""
    try:
        identity = json.loads(text.rstrip(b"\0") or b"{}")
    except ValueError:
        raise InvalidMetricsFileError("The identity in the metrics file is not JSON.") from None
    if not isinstance(identity, dict):
        raise InvalidMetricsFileError("The identity in the metrics file is not a JSON object.")
    return identity
