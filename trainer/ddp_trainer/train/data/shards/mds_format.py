"""MDS, the format of MosaicML Streaming: an ``index.json``, and shards that begin with a table of offsets.

:func:`read_index` reads the index, :func:`decode_record` one sample, and :class:`MdsShard` makes a shard. A shard is:
the number of samples n, n + 1 offsets from its beginning (uint32 each, little-endian), a description, the samples. A
sample is the sizes of its columns of variable size (uint32 each), then the columns, in the order of their names.

Source: ``streaming/base/format/mds`` of MosaicML Streaming 0.13, https://docs.mosaicml.com/projects/streaming.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from ddp_trainer.train.storage.object_storage import ObjectInfo
from ddp_trainer.train.utils.errors import BadData, BadSample

INDEX: Final = "index.json"
OFFSET_BYTES: Final = 4
_INT: Final = "int"
_NUMBERS: Final[Mapping[str, torch.dtype]] = {
    _INT: torch.int64,
    **{name: getattr(torch, name) for name in ("uint8", "int8", "int16", "int32", "int64")},
    **{name: getattr(torch, name) for name in ("float16", "float32", "float64")},
}
"""Encodings of fixed size → their types."""
_NDARRAY: Final = "ndarray:"


class Column(NamedTuple):
    """One column of a sample."""

    name: str
    encoding: str
    size_bytes: int | None
    """Size of each value; None if it varies."""


class Index(NamedTuple):
    """Contents of an ``index.json``."""

    shards: list[ObjectInfo]
    samples: list[int]
    """Number of samples of each shard."""
    columns: list[Column]


def read_index(content: bytes, place: str) -> Index:
    """Return the index of a data set.

    Args:
        content: The file.
        place: URL of the data set, for messages.

    Raises:
        BadData: It is not an index of MDS, has no samples, or the shards are compressed or of other formats.
    """
    try:
        entries = json.loads(content)["shards"]
        kinds = {(str(entry["format"]), bool(entry.get("zip_data"))) for entry in entries}
        raw = [entry["raw_data"] for entry in entries]
        shards = [ObjectInfo(_text(entry, "basename"), _count(entry, "bytes")) for entry in raw]
        samples = [_count(entry, "samples") for entry in entries]
        columns = _columns(entries[0]) if kinds == {("mds", False)} else []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as err:
        raise BadData(
            f"{place}/{INDEX} is not an index of MDS shards: {err!r}.", hint="Write the shards again with write_shards."
        ) from None
    if outside := [shard.key for shard in shards if "/" in shard.key or shard.key in {"", ".", ".."}]:
        raise BadData(
            f"{place}/{INDEX} names the shard {outside[0]!r}, which is not a file beside it.",
            hint="Write the shards again with write_shards.",
        )
    if kinds - {("mds", False)}:
        written = ", ".join(sorted(f"compressed {kind}" if zipped else kind for kind, zipped in kinds))
        raise BadData(f"The shards of {place} are {written}.", hint="Write them as MDS without compression.")
    if not sum(samples):
        raise BadData(f"The stream {place} is empty: its {INDEX} has no samples.", hint="Write at least one sample.")
    return Index(shards, samples, columns)


def _text(entry: Mapping[str, Any], key: str) -> str:
    if not isinstance(entry[key], str):
        raise TypeError(f"{key} is {entry[key]!r:.40}")
    return str(entry[key])


def _count(entry: Mapping[str, Any], key: str) -> int:
    """Return an integer of an entry. Offsets in a shard have 32 bits, so neither bytes nor samples exceed them."""
    if type(entry[key]) is not int or not 0 <= entry[key] < 1 << 8 * OFFSET_BYTES:
        raise ValueError(f"{key} is {entry[key]!r:.40}")
    return int(entry[key])


def _columns(entry: Mapping[str, Any]) -> list[Column]:
    rows = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
    keys = ("name", "encoding", "size")
    return [_column(dict(zip(keys, row, strict=True))) for row in rows]


def _column(row: Mapping[str, Any]) -> Column:
    encoding = _text(row, "encoding")
    if encoding.startswith(_NDARRAY) and encoding.count(":") == 2:
        _array_type(encoding)
    return Column(_text(row, "name"), encoding, None if row["size"] is None else _count(row, "size"))


def _array_type(encoding: str) -> tuple[torch.dtype, list[int]]:
    """Return type and shape of ``ndarray:TYPE:SHAPE``. Raises ValueError."""
    _, name, shape = encoding.split(":")
    sides = [int(side) for side in shape.split(",")]
    if name not in _NUMBERS or min(sides) < 0:
        raise ValueError(f"the encoding is {encoding!r:.40}")
    return _NUMBERS[name], sides


def parse_offsets(table: bytes) -> tuple[int, ...]:
    """Return the offsets of a part of a shard's table."""
    return struct.unpack(f"<{len(table) // OFFSET_BYTES}I", table)


def decode_record(record: bytes, columns: Sequence[Column]) -> dict[str, Any]:
    """Return the columns of a sample.

    Numbers and arrays become tensors, ``str`` becomes text, and any other encoding stays bytes, as an image file.

    Raises:
        BadSample: The record does not have these columns.
    """
    varying = sum(column.size_bytes is None for column in columns)
    try:
        sizes = iter(struct.unpack_from(f"<{varying}I", record))
        start, values = varying * 4, {}
        for column in columns:
            stop = start + (next(sizes) if column.size_bytes is None else column.size_bytes)
            values[column.name] = _decode(record[start:stop], column.encoding)
            start = stop
    except (struct.error, ValueError, TypeError, RuntimeError) as err:
        raise BadSample(f"A sample of {len(record)} bytes cannot be decoded: {err}.", hint="Write it again.") from None
    if start != len(record):
        raise BadSample(f"A sample has {len(record)} bytes, and its columns {start}.", hint="Write it again.")
    return values


def _decode(value: bytes, encoding: str) -> Any:
    if encoding == "str":
        return value.decode()
    if encoding in _NUMBERS:
        return torch.frombuffer(bytearray(value), dtype=_NUMBERS[encoding])[0]
    if encoding.startswith(_NDARRAY) and encoding.count(":") == 2:
        dtype, shape = _array_type(encoding)
        return torch.frombuffer(bytearray(value), dtype=dtype).view(shape)
    return value


class MdsShard:
    """One shard while it is written."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self._columns = sorted(columns)
        self._records: list[bytes] = []
        self.size_bytes = 0
        """Bytes of the samples so far."""

    def add(self, sample: Mapping[str, Any]) -> None:
        """Append a sample.

        Raises:
            BadData: A column is missing, or a value does not fit its encoding.
        """
        try:
            values = [(column, _encode(sample[column.name], column)) for column in self._columns]
        except (KeyError, TypeError, ValueError, RuntimeError) as err:
            raise BadData(f"A sample cannot be written as {self._columns}: {err!r}.", hint="Correct it.") from None
        sizes = [len(value) for column, value in values if column.size_bytes is None]
        record = struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(value for _, value in values)
        self._records.append(record)
        self.size_bytes += len(record)

    def finish(self) -> tuple[bytes, dict[str, Any]]:
        """Return the file, and its entry of the index."""
        described = {
            "column_encodings": [column.encoding for column in self._columns],
            "column_names": [column.name for column in self._columns],
            "column_sizes": [column.size_bytes for column in self._columns],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        }
        config = json.dumps(described, sort_keys=True).encode()
        count = len(self._records)
        start = OFFSET_BYTES * (count + 2) + len(config)
        offsets = [start]
        for record in self._records:
            offsets.append(offsets[-1] + len(record))
        file = struct.pack(f"<{count + 2}I", count, *offsets) + config + b"".join(self._records)
        raw = {"basename": self.name, "bytes": len(file), "hashes": {}}
        return file, {**described, "raw_data": raw, "samples": count, "zip_data": None}


def column(name: str, encoding: str) -> Column:
    """Return a column, whose size follows from its encoding."""
    if encoding in _NUMBERS:
        return Column(name, encoding, _NUMBERS[encoding].itemsize)
    if encoding.startswith(_NDARRAY) and encoding.count(":") == 2:
        _, kind, shape = encoding.split(":")
        return Column(name, encoding, _NUMBERS[kind].itemsize * math.prod(map(int, shape.split(","))))
    return Column(name, encoding, None)


def _encode(value: Any, column: Column) -> bytes:
    if column.encoding == "str":
        return str(value).encode()
    if column.size_bytes is None:
        return bytes(value)
    kind = _NUMBERS[column.encoding.split(":")[1] if column.encoding.startswith(_NDARRAY) else column.encoding]
    encoded = torch.as_tensor(value, dtype=kind).reshape(-1).numpy().tobytes()
    if len(encoded) != column.size_bytes:
        raise ValueError(f"{column.name} has {len(encoded)} bytes, not {column.size_bytes}")
    return encoded
