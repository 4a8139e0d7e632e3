"""Open the storage of a URL, and import the client of its store."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from ddp_trainer.train.storage.object_storage import ObjectStorage
from ddp_trainer.train.storage.retry import RetryPolicy
from ddp_trainer.train.storage.s3_storage import S3Storage
from ddp_trainer.train.utils.errors import StorageRefused
from ddp_trainer.train.utils.locations import EXTRAS, StorageUrl, parse_location


def open_storage(url: str | Path, retry: RetryPolicy | None = None) -> ObjectStorage:
    """Return the objects below a URL (``s3://``, ``gs://``, ``file://``) or in a local directory.

    Raises:
        BadConfig: The URL is not valid.
        StorageRefused: The package of the store is not installed.
    """
    place = parse_location(url) if isinstance(url, str) else url
    retry = retry or RetryPolicy()
    fresh = {"skip_instance_cache": True, "use_listings_cache": False}
    if isinstance(place, Path):
        fsspec = _import_client("fsspec", "s3", str(place))
        directory = StorageUrl(f"file://{place.absolute()}")
        return ObjectStorage(directory, lambda: fsspec.filesystem("file", auto_mkdir=True, **fresh), retry)
    if place.scheme == "s3":
        return S3Storage(place, _import_client("s3fs", EXTRAS["s3"], place), retry)
    gcsfs = _import_client("gcsfs", EXTRAS["gs"], place)
    return ObjectStorage(place, lambda: gcsfs.GCSFileSystem(**fresh), retry)


def _import_client(package: str, extra: str, place: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as err:
        if err.name != package:
            raise
        raise StorageRefused(
            f"{place} needs {package}, which is not installed.", hint=f"Run pip install 'kubectl-ddp[{extra}]'."
        ) from None
