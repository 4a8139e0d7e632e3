"""The index of a data set that others have written."""

from __future__ import annotations

import json

import pytest

from ddp_trainer.train.data.shards.mds_format import read_index
from ddp_trainer.train.utils.errors import BadData


def index_of(basename: str) -> bytes:
    columns = {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]}
    shard = {"format": "mds", "zip_data": None, "samples": 1, "raw_data": {"basename": basename, "bytes": 8}}
    return json.dumps({"shards": [shard | columns]}).encode()


@pytest.mark.parametrize("basename", ["../secret.mds", "/etc/passwd", "..", "", "a/b.mds"])
def test_a_shard_outside_of_the_data_set_is_refused(basename: str) -> None:
    with pytest.raises(BadData, match="which is no file beside it"):
        read_index(index_of(basename), "/data")
    assert read_index(index_of("shard.00000.mds"), "/data").shards[0].key == "shard.00000.mds"


def changed(**fields: object) -> bytes:
    index = json.loads(index_of("shard.00000.mds"))
    [shard] = index["shards"]
    shard["raw_data"] |= {key: fields.pop(key) for key in ("bytes",) if key in fields}
    shard |= fields
    return json.dumps(index).encode()


@pytest.mark.parametrize(
    "content",
    [
        *(changed(samples=number) for number in (10**18, 10**30, -5, 1.5, float("inf"), "1", None, True)),
        *(changed(bytes=number) for number in (10**18, -1, float("inf"))),
        changed(bytes=8).replace(b'"bytes": 8', b'"bytes": 1e400'),
        *(changed(column_encodings=[encoding]) for encoding in (7, None, "ndarray:evil:3", "ndarray:int8:x")),
        *(changed(column_sizes=[size]) for size in (-1, "8", 10**30)),
        changed(column_names=[7]),
        changed(column_names=[]),
        changed(format={}, raw_data=7),
        changed(zip_data={}, raw_data=None),
        b"[" * 100_000,
        b'{"shards": 7}',
        b'{"shards": [7]}',
        b'{"shards": [[]]}',
        b"7",
    ],
)
def test_an_index_with_other_values_than_the_formats_is_refused(content: bytes) -> None:
    with pytest.raises(BadData, match="is not an index of MDS shards"):
        read_index(content, "/data")
