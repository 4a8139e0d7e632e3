"""Describe the errors of store clients in one sentence each.

:func:`as_storage_error` takes any error of fsspec, s3fs or gcsfs. It looks at names, codes and HTTP status, so it
imports none of these packages.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
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

_ANSWERS: Final[Sequence[tuple[type[StorageError], str, str, str]]] = (
    (StorageRefused, "RequestTimeTooSkewed RequestExpired",
     "{url} refuses to {what}, because this machine's clock differs from the store's ({code}).",
     "Set the clock of this machine, for example by NTP."),
    (StorageRefused, "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException 301 307",
     "The bucket of {url} is in another region ({answer}).", "Set AWS_REGION to {region}."),
    (StorageRefused, ("InvalidAccessKeyId SignatureDoesNotMatch ExpiredToken InvalidToken TokenRefreshRequired 401 "
     "InvalidSecurity AuthFailure"), "{url} rejects the credentials ({answer}).", "{credentials_hint}"),
    (StorageFull, ("QuotaExceeded ServiceQuotaExceededException EntityTooLarge StorageFull XMinioStorageFull 413 507 "
     "InsufficientStorage"), "{url} is full ({answer}).", "Free space, or raise the quota."),
    (ObjectExists, "PreconditionFailed 412", "{url} already has the object: {what}.", ""),
    (ConditionUnsupported, "NotImplemented 501", "{url} does not support the request to {what} ({answer}).", ""),
    (StorageRefused, "NoSuchBucket", "There is no bucket {bucket!r} ({answer}).", "Create it, or correct {url}."),
    # May pass. A body that was damaged on the way is sent again.
    (StorageUnavailable, ("SlowDown RequestTimeout RequestTimeoutException OperationAborted ConditionalRequestConflict "
     "BadDigest IncompleteBody XAmzContentSHA256Mismatch Throttling TooManyRequests 408 409 429 5xx"),
     "{url} failed to {what} ({answer}).", ""),
    (ObjectMissing, "404 NoSuchKey NoSuchUpload", "{url} does not have the object: {what}.", ""),
    (StorageRefused, "AccessDenied 403", "{url} denies to {what} ({answer}).",
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
    words = asdict(answer) | {"url": url, "bucket": url.bucket, "what": what}
    words["answer"] = f"{answer.code or answer.status}: {answer.text}".rstrip(". ")
    words["region"] = answer.region or "the region of the bucket"
    words["credentials_hint"] = _credentials_hint(url)
    codes = {answer.code, str(answer.status), f"{answer.status // 100}xx"}
    if answer.status == 400 and answer.region:
        codes.add("PermanentRedirect")
    for kind, known, sentence, hint in _ANSWERS:
        if codes & set(known.split()):
            return kind(sentence.format(**words), hint=hint.format(**words))
    return StorageError("{url} failed to {what} ({answer}).".format(**words))


def _credentials_hint(url: StorageUrl) -> str:
    if url.scheme == "s3":
        return "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the pod a role."
    return "Set GOOGLE_APPLICATION_CREDENTIALS, or give the pod a service account."


def _answer(err: BaseException) -> _Answer | None:
    response: Any = getattr(err, "response", None)
    if isinstance(response, dict) and "Error" in response:  # botocore's ClientError
        error, meta = response["Error"], response.get("ResponseMetadata", {})
        region = error.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region", "")
        status = int(meta.get("HTTPStatusCode", 0))
        return _Answer(str(error.get("Code", "")), status, str(error.get("Message", "")), str(region))
    code: Any = getattr(err, "code", None)
    if type(err).__name__ == "HttpError" and code is not None:  # gcsfs
        return _Answer("", int(code), str(getattr(err, "message", err)))
    return None


def _causes(err: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = err
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
