"""What must survive a crash although no checkpoint holds it: the highest step reached, and where the time has gone.

40 bytes beside the checkpoints, written in place after every step, without waiting for the disk: 2 microseconds; after
them the account of the time, now and then. A killed process leaves them in the page cache, where its successor reads
them; a lost machine may lose the last ones, and then fewer steps are counted as lost than were.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ddp_trainer.train.account import SIZE, Account

FILE: Final = "ODOMETER"
_LAYOUT: Final = struct.Struct("<8sIxxxxqqd")
_MAGIC: Final = b"ddpodo2\n"


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


class Odometer:
    """The file, open for in-place writing; one that cannot be written only forgets."""

    def __init__(self, directory: Path, identity: str) -> None:
        """``identity`` tells runs apart: the file of another run is started anew."""
        self._file = directory / FILE
        self._identity = zlib.crc32(identity.encode())
        self._descriptor: int | None = None

    def read(self) -> Reading:
        """What earlier processes of this run left."""
        try:
            content = self._file.read_bytes()
            magic, identity, highest, lost, first = _LAYOUT.unpack(content[: _LAYOUT.size])
        except (OSError, struct.error):
            return Reading()
        if magic != _MAGIC or identity != self._identity:
            return Reading()
        return Reading(highest, lost, first, Account.unpack(content[_LAYOUT.size : _LAYOUT.size + SIZE]))

    def write(self, reading: Reading) -> None:
        """Leave a reading, but for its account, to the next process; never fails: training does not depend on it."""
        packed = _LAYOUT.pack(_MAGIC, self._identity, reading.highest_step, reading.lost_steps, reading.first_start)
        self._put(packed, 0)

    def write_account(self, account: Account) -> None:
        """Leave the account of a reading that was written, too."""
        self._put(account.pack(), _LAYOUT.size)

    def _put(self, packed: bytes, offset: int) -> None:
        try:
            if self._descriptor is None:
                self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            os.pwrite(self._descriptor, packed, offset)
        except OSError:
            return

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
