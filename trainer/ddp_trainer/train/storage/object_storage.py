"""Objects below one URL, in an object store or in a directory, by fsspec.

:func:`open_storage` is the entry point. A request is repeated on failures that may pass, and an error of a store's
client becomes one sentence with the next step.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from ddp_trainer.common.constants import STORE_CLIENTS
from ddp_trainer.train.utils.errors import (
    ConditionUnsupported,
    ObjectExists,
    ObjectMissing,
    StorageConfigError,
    StorageError,
    StorageFull,
    StorageUnavailable,
)
from ddp_trainer.train.utils.locations import StorageUrl, parse_location

_RESPONSES: Final[Sequence[tuple[type[StorageError], str, str, str]]] = (
    (StorageConfigError, "RequestTimeTooSkewed RequestExpired",
     "{url} refuses to {what}, because this machine's clock differs from the store's ({code}).",
     "Set the clock of this machine, for example by NTP."),
    (StorageConfigError, "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException 301 307",
     "The bucket of {url} is in another region ({answer}).", "Set AWS_REGION to {region}."),
    (StorageConfigError, ("InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken InvalidToken TokenRefreshRequired 401 "
     "InvalidSecurity AuthFailure"), "{url} rejects the credentials ({answer}).", "{credentials_hint}"),
    (StorageFull, ("QuotaExceeded ServiceQuotaExceededException EntityTooLarge StorageFull XMinioStorageFull 413 507 "
     "InsufficientStorage"), "{url} is full ({answer}).", "Free space, or raise the quota."),
    (ObjectExists, "PreconditionFailed 412", "{url} already has the object: {what}.", ""),
    (ConditionUnsupported, "NotImplemented 501", "{url} does not support the request to {what} ({answer}).", ""),
    (StorageConfigError, "NoSuchBucket", "There is no bucket {bucket!r} ({answer}).", "Create it, or correct {url}."),
    # May pass. A body that was damaged on the way is sent again.
    (StorageUnavailable, ("SlowDown RequestTimeout RequestTimeoutException OperationAborted ConditionalRequestConflict "
     "BadDigest IncompleteBody XAmzContentSHA256Mismatch Throttling TooManyRequests 408 409 429 5xx"),
     "{url} failed to {what} ({answer}).", ""),
    (ObjectMissing, "404 NoSuchKey NoSuchUpload", "{url} does not have the object: {what}.", ""),
    (StorageConfigError, "AccessDenied 403", "{url} denies to {what} ({answer}).",
     "Allow these credentials to list the bucket, and to get, put and delete objects."),
)  # fmt: skip
"""Kind of error, codes and HTTP status of the answers, sentence, hint. The first that fits counts."""
_NETWORK_TYPES: Final = frozenset({
    "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError", "FSTimeoutError",
    "ConnectionError", "TimeoutError", "IncompleteReadError", "ResponseStreamingError", "gaierror",
})  # fmt: skip
_NO_CREDENTIALS_TYPES: Final = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _StoreResponse:
    """Response of a store, as its client reports it in an error."""

    code: str = ""
    status: int = 0
    text: str = ""
    region: str = ""


def as_storage_error(err: Exception, url: StorageUrl, what: str) -> StorageError:
    """Return the error as one sentence with the next step.

    Args:
        err: Error of a client.
        url: Prefix that the request was for.
        what: The request, for example "write manifest.json".
    """
    chain = list(_exception_chain(err))
    names = {base.__name__ for error in chain for base in type(error).__mro__}
    if names & _NO_CREDENTIALS_TYPES:
        return StorageConfigError(f"There are no credentials for {url}.", hint=_credentials_hint(url))
    answer = next(filter(None, map(_response_of, chain)), None)
    if answer is not None:
        return _error_of_response(answer, url, what)
    return _error_of_exceptions(chain, names, url, what)


def _error_of_exceptions(chain: Sequence[BaseException], names: set[str], url: StorageUrl, what: str) -> StorageError:
    if any(isinstance(error, FileExistsError) for error in chain):
        return ObjectExists(f"{url} already has the object: {what}.")
    if any(isinstance(error, FileNotFoundError) for error in chain):
        return ObjectMissing(f"{url} does not have the object: {what}.")
    if any(isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT} for error in chain):
        return StorageFull(f"{url} is full: {what}.", hint="Free space, or raise the quota.")
    why = f"{type(chain[0]).__name__}: {chain[0]}".rstrip(". ")
    if names & _NETWORK_TYPES:
        hint = "Check the network and the endpoint."
        return StorageUnavailable(f"{url} cannot be reached to {what} ({why}).", hint=hint)
    return StorageError(f"{url} failed to {what} ({why}).")


def _error_of_response(answer: _StoreResponse, url: StorageUrl, what: str) -> StorageError:
    words = asdict(answer) | {"url": url, "bucket": url.bucket, "what": what}
    words["answer"] = f"{answer.code or answer.status}: {answer.text}".rstrip(". ")
    words["region"] = answer.region or "the region of the bucket"
    words["credentials_hint"] = _credentials_hint(url)
    codes = {answer.code, str(answer.status), f"{answer.status // 100}xx"}
    if answer.status == 400 and answer.region:
        codes.add("PermanentRedirect")
    for kind, known, sentence, hint in _RESPONSES:
        if codes & set(known.split()):
            return kind(sentence.format(**words), hint=hint.format(**words))
    return StorageError("{url} failed to {what} ({answer}).".format(**words))


def _credentials_hint(url: StorageUrl) -> str:
    if url.scheme == "s3":
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role."
    return "Set GOOGLE_APPLICATION_CREDENTIALS, or give the pod a service account."


def _response_of(err: BaseException) -> _StoreResponse | None:
    response: Any = getattr(err, "response", None)
    if isinstance(response, dict) and "Error" in response:  # botocore's ClientError
        error, meta = response["Error"], response.get("ResponseMetadata", {})
        region = error.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        status = int(meta.get("HTTPStatusCode", 0))
        return _StoreResponse(str(error.get("Code", "")), status, str(error.get("Message", "")), str(region))
    code: Any = getattr(err, "code", None)
    if type(err).__name__ == "HttpError" and code is not None:  # gcsfs
        return _StoreResponse("", int(code), str(getattr(err, "message", err)))
    return None


def _exception_chain(err: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = err
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


PART_BYTES: Final = 8 << 20
"""Size of the parts in which large objects are read and written. It bounds the memory of a transfer."""
FIRST_PAUSE_SECONDS: Final = 0.2
"""Bound of the first pause before a request is repeated."""
LONGEST_PAUSE_SECONDS: Final = 20.0

Result = TypeVar("Result")


class ObjectInfo(NamedTuple):
    """Name and size of an object."""

    key: str
    """Name below the URL of the storage."""
    size_bytes: int


class ObjectStorage:
    """Objects below one URL."""

    repeat_seconds: float = 120.0
    """Time after its first failure in which a request is repeated."""

    def __init__(self, url: StorageUrl, connect: Callable[[], Any]) -> None:
        """Create the view; the first request connects.

        Args:
            url: Prefix of all keys.
            connect: Returns a new file system of fsspec.
        """
        self.url = url
        self._connect = connect
        self._pid = 0
        self._connected: Any = None

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec, connected in this process."""
        if self._pid != os.getpid():
            self._connected, self._pid = self._connect(), os.getpid()
        return self._connected

    def path(self, key: str) -> str:
        """Return the name of an object as the file system has it."""
        return f"{self.url.partition('://')[2]}/{key}".rstrip("/")

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        """Return the objects whose key is in a folder, at any depth, in the order of their keys.

        Args:
            prefix: Folder, without a slash at the end; empty for all objects.
        """

        def find() -> list[ObjectInfo]:
            root = self.path("")
            found = self.filesystem.find(self.path(prefix), detail=True)
            return sorted(
                ObjectInfo(path.removeprefix(root).lstrip("/"), int(info["size"]))
                for path, info in found.items()
                if info["type"] == "file"
            )

        return self.request(find, f"list {prefix or 'objects'}")

    def size(self, key: str) -> int:
        """Return the size of an object, in bytes.

        Raises:
            ObjectMissing: There is no such object.
        """
        return self.request(lambda: int(self.filesystem.info(self.path(key))["size"]), f"look up {key}")

    def read(self, key: str) -> bytes:
        """Return a small object.

        Raises:
            ObjectMissing: There is no such object.
        """
        return self.request(lambda: bytes(self.filesystem.cat_file(self.path(key))), f"read {key}")

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return exactly ``length`` bytes of an object.

        Raises:
            ObjectMissing: There is no such object.
            StorageUnavailable: The store returned fewer bytes, repeatedly.
        """

        def read() -> bytes:
            data = bytes(self.filesystem.cat_file(self.path(key), start=start, end=start + length)) if length else b""
            if len(data) != length:
                raise StorageUnavailable(
                    f"{self.url} returned {len(data)} of {length} bytes of {key}.",
                    hint="Check the size of the object, and proxies on the way.",
                )
            return data

        return self.request(read, f"read {key}")

    def chunks(self, key: str, size_bytes: int) -> Iterator[bytes]:
        """Return an object of this size in parts, without holding more than one in memory."""
        for start in range(0, size_bytes, PART_BYTES):
            yield self.read_range(key, start, min(PART_BYTES, size_bytes - start))

    def write(self, key: str, content: bytes | Path, *, if_absent: bool = False) -> None:
        """Write an object, which is visible once it is complete.

        Args:
            key: Name of the object.
            content: The content, or a local file with it.
            if_absent: True to write only if there is no such object, as one atomic operation of the store.

        Raises:
            ObjectExists: There is such an object, and ``if_absent`` is true. An earlier attempt of this call may have
                written it, if its answer was lost: compare the content.
            ConditionUnsupported: The store has no such operation, and ``if_absent`` is true.
            StorageFull: A quota is exceeded.
        """
        size_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        options = self.upload_options(size_bytes) | ({"mode": "create"} if if_absent else {})

        def put() -> None:
            if isinstance(content, bytes):
                self.filesystem.pipe_file(self.path(key), content, **options)
            else:
                self.filesystem.put_file(str(content), self.path(key), **options)

        with suppress(ObjectMissing):  # an upload that was completed by an attempt whose answer was lost
            self.request(put, f"write {key}")
        if (found := self.size(key)) != size_bytes:
            raise StorageUnavailable(f"{self.url} has stored {found} of {size_bytes} bytes of {key}.")

    def upload_options(self, size_bytes: int) -> dict[str, Any]:  # noqa: ARG002 - of stores that need the size
        """Return how the file system uploads an object of this size."""
        return {}

    def delete(self, key: str) -> None:
        """Delete an object; does nothing without one."""

        def remove() -> None:
            try:
                self.filesystem.rm_file(self.path(key))
            except FileNotFoundError:
                return

        self.request(remove, f"delete {key}")

    def request(self, send: Callable[[], Result], what: str) -> Result:
        """Return the result of a request, which is repeated on failures that may pass.

        The pauses are random, between zero and a bound that doubles: exponential backoff with full jitter.

        Raises:
            StorageError: The request failed; the sentence has the URL and the reason.
        """
        bound, until = FIRST_PAUSE_SECONDS, math.inf
        while True:
            try:
                return send()
            except StorageError as err:
                error = err
            except Exception as err:  # noqa: BLE001 - of any client
                error = as_storage_error(err, self.url, what)
                error.__cause__ = err
            now, pause = time.monotonic(), random.uniform(0.0, bound)  # noqa: S311 - no secret
            until = min(until, now + self.repeat_seconds)
            if not isinstance(error, StorageUnavailable) or now + pause > until:
                raise error
            time.sleep(pause)
            bound = min(2 * bound, LONGEST_PAUSE_SECONDS)


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


def open_storage(url: str | Path) -> ObjectStorage:
    """Return the objects below a URL (``s3://``, ``gs://``, ``file://``) or in a local directory.

    Raises:
        BadConfig: The URL is not valid.
        StorageConfigError: The package of the store is not installed.
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
        StorageConfigError: The package is not installed.
    """
    extra = place.scheme if isinstance(place, StorageUrl) else "s3"
    package = STORE_CLIENTS[place.scheme] if isinstance(place, StorageUrl) else "fsspec"
    if importlib.util.find_spec(package) is None:
        raise StorageConfigError(
            f"{place} needs {package}, which is not installed.", hint=f"Run pip install 'kubectl-ddp[{extra}]'."
        )
    return package
