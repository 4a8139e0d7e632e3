"""Store progress that must survive a crash but is in no checkpoint: the highest step and the time account.

:class:`ProgressFile` writes a file beside the checkpoints in place after every step, which takes a few microseconds
because it does not wait for the disk. It writes the time account less often. The data of a killed process stay in the
page cache, where its successor reads them. If a machine is lost, the last updates may be lost, and fewer lost steps are
counted than there were. Each record has a checksum and two places that are written alternately. If a write is cut off
or the disk damages one place, the previous record is in the other.
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

FILE: Final = "PROGRESS"
_RECORD: Final = struct.Struct("<8sIIq")
"""Header: magic, run identity, checksum of the rest of the record, record number. The content follows."""
_SEALED: Final = struct.Struct("<Iq")
_COUNTS: Final = struct.Struct("<qqd")
_MAGIC: Final = b"ddpodo3\n"
_GOES_ON: Final = (
    "the time breakdown of the run is read from its checkpoint, steps lost since then are not counted, and training "
    "continues."
)


@dataclass(slots=True)
class RunProgress:
    """Progress of the run so far."""

    highest_step: int = 0
    """Highest global step ever committed, including steps that were lost later."""
    lost_steps: int = 0
    """Committed steps that had to be repeated, over all restarts."""
    first_start: float = 0.0
    """Start of the run, in seconds since the Unix epoch; 0 if unknown."""
    account: Account = field(default_factory=Account)
    """Time by category."""

    def merged(self, other: RunProgress) -> RunProgress:
        """Return the combination of two readings: the highest counts, the earliest start, and the latest account."""
        starts = [start for start in (self.first_start, other.first_start) if start]
        return RunProgress(
            max(self.highest_step, other.highest_step),
            max(self.lost_steps, other.lost_steps),
            min(starts, default=0.0),
            max(self.account, other.account, key=lambda account: account.until),
        )


class _Record:
    """Record that is rewritten often and has two places in the file."""

    __slots__ = ("_identity", "_number", "_places", "_size", "is_damaged")

    def __init__(self, places: tuple[int, int], size: int, identity: int) -> None:
        self._places, self._size, self._identity = places, size, identity
        self._number = 0
        self.is_damaged = False
        """True if a place contained invalid data at the last read."""

    def read(self, content: bytes) -> bytes | None:
        """Return the newest valid content; None without one for this run."""
        payload: bytes | None = None
        self._number, self.is_damaged = 0, False
        for place in self._places:
            record = content[place : place + _RECORD.size + self._size]
            if not any(record):
                continue
            if len(record) < _RECORD.size + self._size or not _is_valid(record):
                self.is_damaged = True
                continue
            _, identity, _, number = _RECORD.unpack_from(record)
            if identity == self._identity and number > self._number:
                self._number, payload = number, record[_RECORD.size :]
        return payload

    def next(self, payload: bytes) -> tuple[bytes, int]:
        """Return the record for this content, and the offset to write it to."""
        self._number += 1
        checksum = _checksum(self._identity, self._number, payload)
        return _RECORD.pack(_MAGIC, self._identity, checksum, self._number) + payload, self._places[self._number % 2]


def _checksum(identity: int, number: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_SEALED.pack(identity, number)))


def _is_valid(record: bytes) -> bool:
    magic, identity, checksum, number = _RECORD.unpack_from(record)
    return bool(magic == _MAGIC and checksum == _checksum(identity, number, record[_RECORD.size :]))


class ProgressFile:
    """Progress file of one run, written in place. A write error loses the update but does not stop the training."""

    def __init__(self, directory: Path, identity: str, alarm: Callable[[str], None] = lambda _: None) -> None:
        """Create the object; the first write opens the file. Call :meth:`read` before, if the file may exist.

        Args:
            directory: Directory of the file.
            identity: Identity of the run. Content of another run is ignored and replaced.
            alarm: Receives a sentence about each problem.
        """
        self._file = directory / FILE
        self._identity = zlib.crc32(identity.encode())
        self._alarm = alarm
        self._counts = _Record((0, 64), _COUNTS.size, self._identity)
        self._account = _Record((128, 512), SIZE, self._identity)
        self._descriptor: int | None = None

    def read(self) -> RunProgress:
        """Return the progress that earlier processes of this run stored."""
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return RunProgress()
        except OSError as error:
            self._alarm(f"{self._file} cannot be read ({error.strerror}): {_GOES_ON}")
            return RunProgress()
        counts, account = self._counts.read(content), self._account.read(content)
        self._report_corruption(counts, account)
        highest, lost, first = _COUNTS.unpack(counts) if counts else (0, 0, 0.0)
        return RunProgress(highest, lost, first, Account.unpack(account or b""))

    def _report_corruption(self, counts: bytes | None, account: bytes | None) -> None:
        records = ((self._counts, counts), (self._account, account))
        if any(record.is_damaged and payload is None for record, payload in records):
            self._alarm(f"{self._file} is damaged: {_GOES_ON}")
        elif any(record.is_damaged for record, _ in records):
            self._alarm(f"{self._file} is damaged in part; its second copy is intact and is used.")

    def write(self, reading: RunProgress) -> None:
        """Store the counts of a reading, without its account.

        Never raises OSError, because training does not depend on the file.
        """
        self._put(self._counts, _COUNTS.pack(reading.highest_step, reading.lost_steps, reading.first_start))

    def write_account(self, account: Account) -> None:
        """Store the account of a reading; never raises OSError."""
        self._put(self._account, account.pack())

    def _put(self, record: _Record, payload: bytes) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, *record.next(payload))
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
