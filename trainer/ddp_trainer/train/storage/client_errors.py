"""Describe the errors of store clients in one sentence each.

:func:`as_storage_error` takes any error of fsspec, s3fs or gcsfs. It looks at names, codes and HTTP status, so it
imports none of these packages.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.train.utils.errors import (
    ConditionUnsupported,
    ObjectExists,
    ObjectMissing,
    StorageError,
    StorageFull,
    StorageRefused,
    StorageUnavailable,
)
from ddp_trainer.train.utils.locations import StorageUrl

_CLOCK: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_REGION: Final = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
)
_CREDENTIALS: Final = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired", "401",
    "InvalidSecurity", "AuthFailure",
})  # fmt: skip
_FULL: Final = frozenset({
    "QuotaExceeded", "ServiceQuotaExceededException", "EntityTooLarge", "StorageFull", "XMinioStorageFull",
    "InsufficientStorage", "413", "507",
})  # fmt: skip
_UNSUPPORTED: Final = frozenset({"NotImplemented", "501"})
_EXISTS: Final = frozenset({"PreconditionFailed", "412"})
_PASSING: Final = frozenset({
    "SlowDown", "RequestTimeout", "RequestTimeoutException", "OperationAborted", "ConditionalRequestConflict",
    "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "Throttling", "TooManyRequests", "429", "408", "409",
})  # fmt: skip
"""Codes of failures that may pass. A body that was damaged on the way is sent again."""
_NETWORK_TYPES: Final = frozenset({
    "HTTPClientError", "ClientConnectionError", "ClientPayloadError", "ServerDisconnectedError", "FSTimeoutError",
    "ConnectionError", "TimeoutError", "IncompleteReadError", "ResponseStreamingError", "gaierror",
})  # fmt: skip
_NO_CREDENTIALS_TYPES: Final = frozenset({
    "NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a store answered, or how the request ended without an answer."""

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
    chain = list(_causes(err))
    names = {each.__name__ for error in chain for each in type(error).__mro__}
    if names & _NO_CREDENTIALS_TYPES:
        return StorageRefused(f"There are no credentials for {url}.", hint=_credentials_hint(url))
    answer = next(filter(None, map(_answer, chain)), None)
    if answer is not None:
        return _of_answer(answer, url, what)
    return _of_exceptions(chain, names, url, what)


def _of_exceptions(chain: Sequence[BaseException], names: set[str], url: StorageUrl, what: str) -> StorageError:
    if any(isinstance(each, FileExistsError) for each in chain):
        return ObjectExists(f"{url} already has the object: {what}.")
    if any(isinstance(each, FileNotFoundError) for each in chain):
        return ObjectMissing(f"{url} does not have the object: {what}.")
    if any(isinstance(each, OSError) and each.errno in {errno.ENOSPC, errno.EDQUOT} for each in chain):
        return StorageFull(f"{url} is full: {what}.", hint="Free space, or raise the quota.")
    why = f"{type(chain[0]).__name__}: {chain[0]}".rstrip(". ")
    if names & _NETWORK_TYPES:
        hint = "Check the network and the endpoint."
        return StorageUnavailable(f"{url} cannot be reached to {what} ({why}).", hint=hint)
    return StorageError(f"{url} failed to {what} ({why}).")


def _of_answer(answer: _Answer, url: StorageUrl, what: str) -> StorageError:
    codes = {answer.code, str(answer.status)}
    said = f"{answer.code or answer.status}: {answer.text}".rstrip(". ")
    if codes & _CLOCK:
        return StorageRefused(
            f"{url} refuses to {what}, because this machine's clock differs from the store's ({answer.code}).",
            hint="Set the clock of this machine, for example by NTP.",
        )
    if codes & _REGION or (answer.status == 400 and answer.region):
        region = answer.region or "the region of the bucket"
        return StorageRefused(
            f"The bucket of {url} is in another region ({said}).", hint=f"Set AWS_REGION to {region}."
        )
    if codes & _CREDENTIALS:
        return StorageRefused(f"{url} rejects the credentials ({said}).", hint=_credentials_hint(url))
    for found, kind, message, hint in (
        (codes & _FULL, StorageFull, f"{url} is full ({said}).", "Free space, or raise the quota."),
        (codes & _EXISTS, ObjectExists, f"{url} already has the object: {what}.", ""),
        (codes & _UNSUPPORTED, ConditionUnsupported, f"{url} does not support the request to {what} ({said}).", ""),
        (
            "NoSuchBucket" in codes, StorageRefused, f"There is no bucket {url.bucket!r} ({said}).",
            f"Create it, or correct {url}.",
        ),
        (codes & _PASSING or answer.status >= 500, StorageUnavailable, f"{url} failed to {what} ({said}).", ""),
        (codes & {"404", "NoSuchKey", "NoSuchUpload"}, ObjectMissing, f"{url} does not have the object: {what}.", ""),
        (
            "AccessDenied" in codes or "403" in codes, StorageRefused, f"{url} denies to {what} ({said}).",
            "Allow these credentials to list the bucket, and to get, put and delete objects.",
        ),
    ):  # fmt: skip
        if found:
            return kind(message, hint=hint)
    return StorageError(f"{url} failed to {what} ({said}).")


def _credentials_hint(url: StorageUrl) -> str:
    if url.scheme == "s3":
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role."
    return "Set GOOGLE_APPLICATION_CREDENTIALS, or give the pod a service account."


def _answer(err: BaseException) -> _Answer | None:
    response: Any = getattr(err, "response", None)
    if isinstance(response, dict) and "Error" in response:  # botocore's ClientError
        told, meta = response["Error"], response.get("ResponseMetadata", {})
        region = told.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        return _Answer(
            str(told.get("Code", "")), int(meta.get("HTTPStatusCode", 0)), str(told.get("Message", "")), str(region)
        )
    code: Any = getattr(err, "code", None)
    if type(err).__name__ == "HttpError" and code is not None:  # gcsfs
        return _Answer("", int(code), str(getattr(err, "message", err)))
    return None


def _causes(err: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = err
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
