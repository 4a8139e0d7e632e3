"""Samples in MDS shards below a URL or in a directory: :class:`ShardedSamples` reads, :func:`write_shards` writes.

Parts of shards, and several shards as one sequence of bytes, are read through an object store.
"""

from __future__ import annotations

import copy
import hashlib
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import torch

from ddp_trainer.train.data.sample_order import BlockTable, uniform_blocks
from ddp_trainer.train.data.shards.mds_format import (
    INDEX,
    OFFSET_BYTES,
    MdsShard,
    column,
    decode_record,
    parse_offsets,
    read_index,
)
from ddp_trainer.train.storage.object_storage import ObjectInfo, ObjectStorage, open_storage
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


BLOCK_BYTES: Final = 1 << 20
SHARD_BYTES: Final = 64 << 20


class ShardedSamples:
    """Map-style data set of shards, of which each rank reads the blocks of its own batch slices.

    Blocks are shuffled in each epoch; the samples of a block follow one another. So mix the samples before they are
    written.
    """

    def __init__(
        self,
        url: str | Path,
        decode: Callable[[dict[str, Any]], Any] | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        """Read the index.

        Args:
            url: ``s3://``, ``gs://`` or ``file://`` URL or directory of an ``index.json`` in the format MDS.
            decode: Makes a sample of its columns (default: the columns). It may draw random numbers, and raise
                ``BadSample``.
            block_bytes: Approximate size of a block. A rank keeps two blocks of each of its batch slices in memory.

        Raises:
            BadData: There is no index, or it has no samples.
            StorageError: The store cannot be read, or its package is missing.
        """
        storage = open_storage(url)
        try:
            content = storage.read(INDEX)
        except ObjectMissing:
            raise BadData(
                f"{storage.url} has no {INDEX}, which lists the shards of a stream.",
                hint="Write the shards with ddp_trainer.train.data.shards.write_shards or MosaicML's MDSWriter.",
            ) from None
        index = read_index(content, storage.url)
        self._reader = ShardReader(storage, index.shards)
        self._columns = index.columns
        self._counts = index.samples
        self._ends = torch.tensor(list(accumulate(index.samples)))
        self._decode = decode
        mean_bytes = self._reader.total_bytes / sum(index.samples)
        self._block_size = max(1, int(block_bytes / mean_bytes))
        self.blocks: BlockTable = uniform_blocks(torch.tensor(index.samples), self._block_size)
        """Blocks of the data set."""

    def __len__(self) -> int:
        return self.blocks.samples

    def __getitem__(self, index: int) -> Any:
        return self.decode(self.read_block(index, 1)[0])

    def read_block(self, first: int, count: int) -> list[bytes]:
        """Return adjacent samples of one block as they are stored. May be called by several threads.

        Raises:
            BadData: The shard is missing or has changed.
            StorageError: It cannot be read.
        """
        number = int(torch.searchsorted(self._ends, first, right=True))
        first -= int(self._ends[number]) - self._counts[number]
        table = self._reader.read(number, OFFSET_BYTES * (first + 1), OFFSET_BYTES * (count + 1))
        offsets = parse_offsets(table)
        if any(a > b for a, b in pairwise(offsets)) or (offsets[-1] > self._reader.shards[number].size_bytes):
            raise self._reader.changed(number, "has another table of offsets")
        start = offsets[0]
        body = self._reader.read(number, start, offsets[-1] - start)
        return [body[a - start : b - start] for a, b in pairwise(offsets)]

    def decode(self, record: bytes) -> Any:
        """Return the sample of a stored record.

        Raises:
            BadSample: It cannot be decoded.
        """
        columns = decode_record(record, self._columns)
        return columns if self._decode is None else self._decode(columns)

    def data_digest(self) -> str:
        """Return a digest of names, sizes and numbers of samples of the shards, and of the size of a block."""
        rows = [[*shard, count] for shard, count in zip(self._reader.shards, self._counts, strict=True)]
        return hashlib.sha256(json.dumps([self._block_size, rows]).encode()).hexdigest()


def write_shards(
    url: str | Path, samples: Iterable[Mapping[str, Any]], columns: Mapping[str, str], *, shard_bytes: int = SHARD_BYTES
) -> int:
    """Write samples as MDS shards and their index, and return the number of samples.

    The index is written last, so a data set is complete or has none. The format is that of MosaicML Streaming.

    Args:
        url: URL or directory, without an index so far.
        samples: Samples, by column.
        columns: Name → encoding: ``bytes``, ``str``, ``int``, ``float32`` … or ``ndarray:uint8:28,28``.
        shard_bytes: Size of a shard, at which the next one begins.

    Raises:
        BadData: A sample does not fit the columns.
        StorageError: The store cannot be written.
    """
    storage = open_storage(url)
    described = [column(*named) for named in columns.items()]
    entries: list[dict[str, Any]] = []
    shard = MdsShard("shard.00000.mds", described)

    def finish(written: MdsShard) -> MdsShard:
        file, entry = written.finish()
        storage.write(written.name, file)
        entries.append(entry)
        return MdsShard(f"shard.{len(entries):05}.mds", described)

    for sample in samples:
        shard.add(sample)
        if shard.size_bytes >= shard_bytes:
            shard = finish(shard)
    if shard.size_bytes:
        finish(shard)
    storage.write(INDEX, json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode())
    return sum(entry["samples"] for entry in entries)
