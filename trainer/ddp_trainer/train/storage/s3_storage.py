"""Objects in S3 and in stores with its interface, by s3fs, which uploads large files in parts.

The AWS SDK repeats each request, also that of a part, as often as its settings say (``AWS_MAX_ATTEMPTS``). Credentials,
region and endpoint are those of the SDK as well (``AWS_*``, a role of the pod). Requests have no checksums beside the
size, which many other stores refuse: callers compare digests.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Final

from ddp_trainer.train.storage.object_storage import PART_BYTES, ObjectStorage
from ddp_trainer.train.utils.errors import StorageError

PARTS_AT_ONCE: Final = 4
"""Parts of an upload that are in memory and on the way."""
_MOST_PARTS: Final = 10_000
"""Limit of S3 on the parts of one object."""
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 60


class S3Storage(ObjectStorage):
    """Objects below one URL in a bucket of S3."""

    def upload_options(self, size_bytes: int) -> dict[str, Any]:
        """Return how s3fs uploads an object of this size."""
        return {"chunksize": max(PART_BYTES, -(-size_bytes // _MOST_PARTS)), "max_concurrency": PARTS_AT_ONCE}

    def abort_uploads(self) -> None:
        """Remove the parts of uploads below this URL that were never completed, which the store would keep.

        Does nothing if the store does not list them, or does not allow it.
        """
        bucket, _, prefix = self.path("").partition("/")

        def abort() -> None:
            found = self.filesystem.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix)
            for upload in found.get("Uploads", []):
                if upload["Key"].startswith(f"{prefix}/"):
                    self.filesystem.call_s3(
                        "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

        with suppress(StorageError):
            self.request(abort, "remove unfinished uploads")


def connect(s3fs: Any) -> Any:
    """Return a file system that leaves repeating to the SDK, and reads without looking up the size first."""
    checksums = {
        name: "when_required"
        for name in ("request_checksum_calculation", "response_checksum_validation")
        if f"AWS_{name.upper()}" not in os.environ
    }
    filesystem = s3fs.S3FileSystem(
        config_kwargs={"connect_timeout": _CONNECT_SECONDS, "read_timeout": _READ_SECONDS, **checksums},
        max_concurrency=1,
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    filesystem.retries = 1
    return filesystem
