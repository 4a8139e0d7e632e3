"""Objects in S3 and in stores with its interface, by s3fs.

:class:`S3Storage` uploads large files in parts of its own: each part is repeated alone, and at most
:data:`PARTS_AT_ONCE` are in memory. Credentials, region and endpoint are those of the AWS SDKs (``AWS_*``, a role of
the pod). Requests have no checksums beside the size, which many other stores refuse: callers compare digests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ddp_trainer.train.storage.object_storage import PART_BYTES, ObjectStorage
from ddp_trainer.train.storage.retry import RetryPolicy
from ddp_trainer.train.utils.errors import ObjectMissing, StorageError
from ddp_trainer.train.utils.locations import StorageUrl

PARTS_AT_ONCE: Final = 4
"""Parts of an upload that are in memory and on the way."""
_MOST_PARTS: Final = 10_000
"""Limit of S3 on the parts of one object."""
_CONNECT_SECONDS: Final = 10
_READ_SECONDS: Final = 60


class S3Storage(ObjectStorage):
    """Objects below one URL in a bucket of S3."""

    def __init__(self, url: StorageUrl, s3fs: Any, retry: RetryPolicy) -> None:
        """Create the view; the first request connects."""
        super().__init__(url, lambda: _connect(s3fs), retry)

    def write(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> None:
        """Write an object; see :meth:`.ObjectStorage.write`."""
        size_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        if size_bytes > 2 * PART_BYTES:
            self._write_parts(key, content, size_bytes, condition)
        else:
            body = content if isinstance(content, bytes) else content.read_bytes()
            self._call("put_object", f"write {key}", key, Body=body, **condition)
        self._check_written(key, size_bytes)

    def read(self, key: str) -> bytes:
        """Return a small object; see :meth:`.ObjectStorage.read`."""
        # With one reader at a time, s3fs does not look up the size first.
        return self.request(lambda: bytes(self.filesystem.cat_file(self.path(key), max_concurrency=1)), f"read {key}")

    def size(self, key: str) -> int:
        """Return the size of an object, in bytes; see :meth:`.ObjectStorage.size`."""
        return int(self._call("head_object", f"look up {key}", key)["ContentLength"])

    def delete(self, key: str) -> None:
        """Delete an object; does nothing without one."""
        with suppress(ObjectMissing):
            self._call("delete_object", f"delete {key}", key)

    def abort_uploads(self) -> None:
        """Remove the parts of uploads below this URL that were never completed, which the store would keep.

        Does nothing if the store does not list them, or does not allow it.
        """
        prefix = self._place("")["Key"]
        with suppress(StorageError):
            found = self._call("list_multipart_uploads", "list uploads", "", Key=None, Prefix=prefix)
            for each in found.get("Uploads", []):
                if each["Key"].startswith(f"{prefix}/"):
                    arguments = {"Key": each["Key"], "UploadId": each["UploadId"]}
                    self._call("abort_multipart_upload", "remove an unfinished upload", "", **arguments)

    def _write_parts(self, key: str, content: bytes | Path, size_bytes: int, condition: dict[str, str]) -> None:
        upload = self._call("create_multipart_upload", f"write {key}", key)["UploadId"]
        part_bytes = max(PART_BYTES, -(-size_bytes // _MOST_PARTS))
        numbers = range(1, -(-size_bytes // part_bytes) + 1)

        def send(number: int) -> dict[str, Any]:
            body = _slice(content, (number - 1) * part_bytes, part_bytes)
            what = f"write part {number} of {len(numbers)} of {key}"
            told = self._call("upload_part", what, key, UploadId=upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": told["ETag"]}

        try:
            with ThreadPoolExecutor(PARTS_AT_ONCE, "ddp-upload") as threads:
                parts = list(_run_all(threads, send, numbers))
            with suppress(ObjectMissing):  # completed by an attempt whose answer was lost: the size is compared
                self._call(
                    "complete_multipart_upload", f"write {key}", key, UploadId=upload, MultipartUpload={"Parts": parts},
                    **condition,
                )  # fmt: skip
        except BaseException:
            with suppress(Exception):
                self._send("abort_multipart_upload", **self._place(key), UploadId=upload)
            raise

    def _call(self, method: str, what: str, key: str, **arguments: Any) -> dict[str, Any]:
        given = {name: value for name, value in (self._place(key) | arguments).items() if value is not None}
        return self.request(lambda: self._send(method, **given), what)

    def _send(self, method: str, **arguments: Any) -> dict[str, Any]:
        return self.filesystem.call_s3(method, **arguments)  # type: ignore[no-any-return] # s3fs is untyped

    def _place(self, key: str) -> dict[str, Any]:
        bucket, _, name = self.path(key).partition("/")
        return {"Bucket": bucket, "Key": name}


def _connect(s3fs: Any) -> Any:
    """Return a file system that sends each request once: :class:`.RetryPolicy` repeats it."""
    checksums = {
        name: "when_required"
        for name in ("request_checksum_calculation", "response_checksum_validation")
        if f"AWS_{name.upper()}" not in os.environ
    }
    filesystem = s3fs.S3FileSystem(
        config_kwargs={
            "retries": {"total_max_attempts": 1},
            "connect_timeout": _CONNECT_SECONDS,
            "read_timeout": _READ_SECONDS,
            **checksums,
        },
        use_listings_cache=False,
        skip_instance_cache=True,
    )
    filesystem.retries = 1
    return filesystem


def _run_all(threads: ThreadPoolExecutor, send: Any, numbers: range) -> Iterator[Any]:
    """Return the results in order; after a failure, what has not begun is not begun."""
    futures = [threads.submit(send, number) for number in numbers]
    try:
        for future in futures:
            yield future.result()
    except StorageError:
        threads.shutdown(cancel_futures=True)
        raise


def _slice(content: bytes | Path, start: int, length: int) -> bytes:
    if isinstance(content, bytes):
        return content[start : start + length]
    with content.open("rb") as stream:
        stream.seek(start)
        return stream.read(length)
