"""Reading of parts of shards, and of several shards as one sequence of bytes."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from ddp_trainer.train.storage.object_storage import ObjectInfo, ObjectStorage
from ddp_trainer.train.utils.errors import BadData, ObjectMissing, StorageUnavailable


class ShardReader:
    """Reads parts of the shards below one URL, whose sizes were known when the run began."""

    def __init__(self, storage: ObjectStorage, shards: Sequence[ObjectInfo]) -> None:
        self.shards = shards
        self._storage = storage
        self._once = copy.copy(storage)
        self._once.repeat_seconds = 0.0
        self._ends = list(accumulate(shard.size_bytes for shard in shards))

    @property
    def total_bytes(self) -> int:
        """Number of bytes of all shards."""
        return self._ends[-1] if self._ends else 0

    def read(self, number: int, start: int, length: int) -> bytes:
        """Return ``length`` bytes of a shard.

        Raises:
            BadData: The shard is missing, or its size has changed.
            StorageError: It cannot be read.
        """
        shard = self.shards[number]
        try:
            try:
                return self._once.read_range(shard.key, start, length)
            except StorageUnavailable:
                # A shard that has become shorter also fails so, and repeating the request would not help.
                if (found := self._storage.size(shard.key)) != shard.size_bytes:
                    raise self.changed(number, f"has {found} bytes") from None
                return self._storage.read_range(shard.key, start, length)
        except ObjectMissing:
            raise self.changed(number, "is gone") from None

    def changed(self, number: int, what: str) -> BadData:
        """Return the error for a shard that is not the one that the run began with."""
        shard = self.shards[number]
        return BadData(
            f"The shard {self._storage.url}/{shard.key} {what}, and had {shard.size_bytes} bytes when the run began.",
            hint="Restore it, or start a new run with the changed data.",
        )

    def read_joined(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes of all shards taken as one sequence. Raises the errors of :meth:`read`."""
        pieces = []
        number = bisect_right(self._ends, start)
        while length:
            within = start - (self._ends[number] - self.shards[number].size_bytes)
            taken = min(length, self.shards[number].size_bytes - within)
            if taken:
                pieces.append(self.read(number, within, taken))
            start, length, number = start + taken, length - taken, number + 1
        return b"".join(pieces)
