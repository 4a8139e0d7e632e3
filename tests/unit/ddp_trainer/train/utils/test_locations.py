"""A place is a directory or a URL of an object store; anything else is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.locations import StorageUrl, parse_location


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("checkpoints", Path("checkpoints")),
        ("/data/run 1", Path("/data/run 1")),
        ("file:///data/run%201", Path("/data/run 1")),
        ("s3://bucket", StorageUrl("s3://bucket")),
        ("S3://bucket/a/b/", StorageUrl("s3://bucket/a/b")),
        ("gs://bucket/a", StorageUrl("gs://bucket/a")),
    ],
)
def test_a_place_is_a_path_or_a_url(text: str, place: Path | StorageUrl) -> None:
    found = parse_location(text)
    assert (found, type(found)) == (place, type(place))


@pytest.mark.parametrize(
    "text", ["s3://", "s3:///run", "s3://bucket//run", "s3://bucket/../x", "az://b/c", "file://run"]
)
def test_a_url_without_a_bucket_or_of_another_store_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        parse_location(text)
