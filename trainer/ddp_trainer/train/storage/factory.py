"""Open the storage of a URL, and import the client of its store."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from ddp_trainer.common.constants import STORE_CLIENTS
from ddp_trainer.train.storage.object_storage import ObjectStorage
from ddp_trainer.train.storage.s3_storage import S3Storage, connect
from ddp_trainer.train.utils.errors import StorageRefused
from ddp_trainer.train.utils.locations import StorageUrl, parse_location


def open_storage(url: str | Path) -> ObjectStorage:
    """Return the objects below a URL (``s3://``, ``gs://``, ``file://``) or in a local directory.

    Raises:
        BadConfig: The URL is not valid.
        StorageRefused: The package of the store is not installed.
    """
    place = parse_location(url) if isinstance(url, str) else url
    client = importlib.import_module(require_client(place))
    fresh = {"skip_instance_cache": True, "use_listings_cache": False}
    if isinstance(place, Path):
        directory = StorageUrl(f"file://{place.absolute()}")
        return ObjectStorage(directory, lambda: client.filesystem("file", auto_mkdir=True, **fresh))
    if place.scheme == "s3":
        return S3Storage(place, lambda: connect(client))
    return ObjectStorage(place, lambda: client.GCSFileSystem(**fresh))


def require_client(place: Path | StorageUrl) -> str:
    """Return the package that reads a place, which is installed; it is not imported.

    Raises:
        StorageRefused: The package is not installed.
    """
    extra = place.scheme if isinstance(place, StorageUrl) else "s3"
    package = STORE_CLIENTS[place.scheme] if isinstance(place, StorageUrl) else "fsspec"
    if importlib.util.find_spec(package) is None:
        raise StorageRefused(
            f"{place} needs {package}, which is not installed.", hint=f"Run pip install 'kubectl-ddp[{extra}]'."
        )
    return package
