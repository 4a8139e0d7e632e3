"""What must survive a crash although no checkpoint holds it: the highest step reached, and where the time has gone.

A file beside the checkpoints, written in place after every step, without waiting for the disk, which takes a few
microseconds; the account of the time now and then. A killed process leaves them in the page cache, where its successor
reads them; a lost machine may lose the last ones, and then fewer steps are counted as lost than were.

Each record has a checksum and two places, which are written by turns: of a write that was cut off, or a place that the
disk has damaged, the one before is left.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.train.config.goodput_account import SIZE, Account

FILE: Final = "ODOMETER"
_RECORD: Final = struct.Struct("<8sIIq")
"""Magic, identity of the run, checksum of the rest of the record, number of the record; what it tells follows."""
_SEALED: Final = struct.Struct("<Iq")
_COUNTS: Final = struct.Struct("<qqd")
_MAGIC: Final = b"ddpodo3\n"
_BARE: Final = struct.Struct("<8sIxxxxqqd")
"""Of a file from before there were checksums: what is counted, once, and then the account."""
_BARE_MAGIC: Final = b"ddpodo2\n"
_LATEST: Final = 1e11
"""No run has begun after this; Unix time."""
_GOES_ON: Final = (
    "what the run has gone through is taken from its checkpoint, steps that were lost since are not counted, and "
    "training goes on."
)


@dataclass(slots=True)
class Reading:
    """The run so far."""

    highest_step: int = 0
    """Most global steps that were ever committed, whether they survived or not."""
    lost_steps: int = 0
    """Committed steps that had to be done again, over all restarts."""
    first_start: float = 0.0
    """When the run began, in seconds since the Unix epoch; 0 when not known."""
    account: Account = field(default_factory=Account)
    """What the time has gone into."""

    def merged(self, other: Reading) -> Reading:
        """What either of them knows."""
        starts = [start for start in (self.first_start, other.first_start) if start]
        return Reading(
            max(self.highest_step, other.highest_step),
            max(self.lost_steps, other.lost_steps),
            min(starts, default=0.0),
            max(self.account, other.account, key=lambda account: account.until),
        )


class _Record:
    """One thing that is told again and again, and stands in two places of the file."""

    __slots__ = ("_identity", "_number", "_places", "_size", "is_damaged")

    def __init__(self, places: tuple[int, int], size: int, identity: int) -> None:
        self._places, self._size, self._identity = places, size, identity
        self._number = 0
        self.is_damaged = False
        """One of its places held something else when it was read last."""

    def read(self, content: bytes) -> bytes | None:
        """What was told last; None where nothing can be read of this run."""
        told: bytes | None = None
        self._number, self.is_damaged = 0, False
        for place in self._places:
            record = content[place : place + _RECORD.size + self._size]
            if not any(record):
                continue
            if len(record) < _RECORD.size + self._size or not _is_whole(record):
                self.is_damaged = True
                continue
            _, identity, _, number = _RECORD.unpack_from(record)
            if identity == self._identity and number > self._number:
                self._number, told = number, record[_RECORD.size :]
        return told

    def next(self, told: bytes) -> tuple[bytes, int]:
        """The record that says so, and where it is to be written."""
        self._number += 1
        checksum = _checksum(self._identity, self._number, told)
        return _RECORD.pack(_MAGIC, self._identity, checksum, self._number) + told, self._places[self._number % 2]


def _checksum(identity: int, number: int, told: bytes) -> int:
    return zlib.crc32(told, zlib.crc32(_SEALED.pack(identity, number)))


def _is_whole(record: bytes) -> bool:
    magic, identity, checksum, number = _RECORD.unpack_from(record)
    return bool(magic == _MAGIC and checksum == _checksum(identity, number, record[_RECORD.size :]))


class ProgressFile:
    """The file, open for in-place writing; one that cannot be written only forgets."""

    def __init__(self, directory: Path, identity: str, alarm: Callable[[str], None] = lambda _: None) -> None:
        """``identity`` tells runs apart: the file of another run is started anew. ``alarm`` hears what is wrong."""
        self._file = directory / FILE
        self._identity = zlib.crc32(identity.encode())
        self._alarm = alarm
        self._counts = _Record((0, 64), _COUNTS.size, self._identity)
        self._account = _Record((128, 512), SIZE, self._identity)
        self._descriptor: int | None = None
        self._is_known = False

    def read(self) -> Reading:
        """What earlier processes of this run left."""
        self._is_known = True
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return Reading()
        except OSError as error:
            self._alarm(f"{self._file} cannot be read ({error.strerror}): {_GOES_ON}")
            return Reading()
        if content.startswith(_BARE_MAGIC):
            return self._read_bare(content)
        counts, account = self._counts.read(content), self._account.read(content)
        self._say_damage(counts, account)
        highest, lost, first = _COUNTS.unpack(counts) if counts else (0, 0, 0.0)
        return Reading(highest, lost, first, Account.unpack(account or b""))

    def _say_damage(self, counts: bytes | None, account: bytes | None) -> None:
        records = ((self._counts, counts), (self._account, account))
        if any(record.is_damaged and told is None for record, told in records):
            self._alarm(f"{self._file} is damaged: {_GOES_ON}")
        elif any(record.is_damaged for record, _ in records):
            self._alarm(f"{self._file} is damaged in part; the second copy in it tells the same, and is gone on from.")

    def _read_bare(self, content: bytes) -> Reading:
        """What was left when there were no checksums, if that can be."""
        if len(content) < _BARE.size:
            self._alarm(f"{self._file} is damaged: {_GOES_ON}")
            return Reading()
        _, identity, highest, lost, first = _BARE.unpack_from(content)
        if identity != self._identity:
            return Reading()
        account = Account.unpack(content[_BARE.size : _BARE.size + SIZE])
        if min(highest, lost) < 0 or not 0.0 <= first < _LATEST:
            self._alarm(f"{self._file} is damaged: {_GOES_ON}")
            return Reading(account=account)
        self._alarm(
            f"{self._file} has no checksum, as an older version left it; it is believed, and has one from now on."
        )
        return Reading(highest, lost, first, account)

    def write(self, reading: Reading) -> None:
        """Leave a reading, but for its account, to the next process; never fails: training does not depend on it."""
        self._put(self._counts, _COUNTS.pack(reading.highest_step, reading.lost_steps, reading.first_start))

    def write_account(self, account: Account) -> None:
        """Leave the account of a reading that was written, too."""
        self._put(self._account, account.pack())

    def _put(self, record: _Record, told: bytes) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            os.pwrite(self._descriptor, *record.next(told))
        except OSError:
            return

    def _open(self) -> int:
        """A descriptor of the file, in which nothing is left of another version. Raises OSError."""
        if not self._is_known:
            self.read()
        descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if os.pread(descriptor, len(_MAGIC), 0) == _BARE_MAGIC:
            os.ftruncate(descriptor, 0)
        return descriptor

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
