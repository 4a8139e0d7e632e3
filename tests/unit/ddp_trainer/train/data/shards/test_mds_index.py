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
