"""Samples in shards of the formats that others write."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.train.data.shards import ShardedSamples, write_shards
from ddp_trainer.train.data.shards.mds_format import read_index
from ddp_trainer.train.utils.errors import BadData, BadSample, TrainError

COLUMNS = {"number": "int", "text": "str", "image": "bytes", "pair": "ndarray:float32:2"}


def sample(number: int) -> dict[str, Any]:
    pair = torch.tensor([number, -number], dtype=torch.float32)
    return {"number": number, "text": f"number {number}", "image": bytes(number % 7), "pair": pair}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Return a directory of 100 samples in several shards."""
    assert write_shards(tmp_path / "data", map(sample, range(100)), COLUMNS, shard_bytes=1000) == 100
    assert len(list((tmp_path / "data").glob("*.mds"))) > 3
    return tmp_path / "data"


def test_samples_are_read_as_they_were_written(shards: Path) -> None:
    read = ShardedSamples(shards)

    assert len(read) == 100
    for number in (0, 41, 99):
        found = read[number]
        assert found.pop("pair").tolist() == [number, -number]
        assert found == {"number": number, "text": f"number {number}", "image": bytes(number % 7)}


def test_a_block_is_read_together(shards: Path) -> None:
    read = ShardedSamples(shards, lambda columns: int(columns["number"]), block_bytes=500)
    starts = [*read.blocks.starts.tolist(), 100]

    blocks = [read.read_block(start, stop - start) for start, stop in itertools.pairwise(starts)]

    assert len(blocks) >= 10
    assert [*map(read.decode, itertools.chain(*blocks))] == list(range(100))


def test_the_digest_changes_with_data_and_block_size(shards: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "other", map(sample, range(99)), COLUMNS, shard_bytes=1000)

    chosen = ((shards, 500), (shards, 5000), (tmp_path / "other", 500))
    digests = {ShardedSamples(place, block_bytes=size).data_digest() for place, size in chosen}

    assert len(digests) == 3
    assert ShardedSamples(shards, block_bytes=500).data_digest() in digests


@pytest.mark.parametrize(
    ("harm", "sentence"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:60]), "shard.00000.mds has 60 bytes, and had"),
        (Path.unlink, "shard.00000.mds is gone, and had"),
        (lambda file: file.write_bytes(b"\xff" * file.stat().st_size), "shard.00000.mds has another table of offsets"),
    ],
)
def test_a_shard_that_changed_in_the_run_is_named(shards: Path, harm: Callable[[Path], object], sentence: str) -> None:
    read = ShardedSamples(shards)
    for file in shards.glob("*.mds"):
        harm(file)

    with pytest.raises(BadData, match=sentence):
        read.read_block(5, 3)


def index_of(basename: str) -> bytes:
    columns = {"column_names": ["x"], "column_encodings": ["bytes"], "column_sizes": [None]}
    shard = {"format": "mds", "zip_data": None, "samples": 1, "raw_data": {"basename": basename, "bytes": 8}}
    return json.dumps({"shards": [shard | columns]}).encode()


def changed(**fields: object) -> bytes:
    index = json.loads(index_of("shard.00000.mds"))
    [shard] = index["shards"]
    shard["raw_data"] |= {key: fields.pop(key) for key in ("bytes",) if key in fields}
    shard |= fields
    return json.dumps(index).encode()


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        (None, "has no index.json"),
        ("[1]", "is not an index"),
        ('{"shards": []}', "is empty"),
        ('{"shards": [{"format": "json", "raw_data": {"basename": "a", "bytes": 1}, "samples": 1}]}', "are json"),
        (changed(zip_data={"basename": "shard.00000.mds.zstd", "bytes": 1}).decode(), "compressed mds"),
    ],
)
def test_an_index_that_cannot_be_used_is_refused(tmp_path: Path, index: str | None, sentence: str) -> None:
    if index is not None:
        (tmp_path / "index.json").write_text(index)

    with pytest.raises(BadData, match=sentence):
        ShardedSamples(tmp_path)


def test_a_record_of_other_columns_is_a_bad_sample(shards: Path) -> None:
    with pytest.raises(BadSample):
        ShardedSamples(shards).decode(b"\xff" * 40)


def test_a_sample_that_does_not_fit_is_refused_and_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(TrainError, match="cannot be written"):
        write_shards(tmp_path / "data", [{"number": 1}], COLUMNS)

    assert not (tmp_path / "data/index.json").exists()


@pytest.mark.parametrize("basename", ["../secret.mds", "/etc/passwd", "..", "", "a/b.mds"])
def test_a_shard_outside_of_the_data_set_is_refused(basename: str) -> None:
    with pytest.raises(BadData, match="which is not a file beside it"):
        read_index(index_of(basename), "/data")
    assert read_index(index_of("shard.00000.mds"), "/data").shards[0].key == "shard.00000.mds"


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
        pytest.param(b"[" * 100_000, id="endless"),
        b'{"shards": 7}',
        b'{"shards": [7]}',
        b'{"shards": [[]]}',
        b"7",
    ],
)
def test_an_index_with_other_values_than_the_formats_is_refused(content: bytes) -> None:
    gc.collect()  # or garbage of another test is finalized where the decoder has used the stack up
    with pytest.raises(BadData, match="is not an index of MDS shards"):
        read_index(content, "/data")
