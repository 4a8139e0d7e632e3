"""What a store or its client reports becomes an error with a next step; which one decides whether it is repeated."""

from __future__ import annotations

import errno

import pytest

from ddp_trainer.train.storage.object_storage import as_storage_error
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

URL = StorageUrl("s3://bucket/run")


class ClientError(Exception):
    """As botocore raises it."""

    def __init__(self, code: str, status: int, **headers: str) -> None:
        super().__init__(code)
        self.response = {
            "Error": {"Code": code, "Message": "as the store wrote it"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        }


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SlowDown", 503, StorageUnavailable),
        ("InternalError", 500, StorageUnavailable),
        ("ConditionalRequestConflict", 409, StorageUnavailable),
        ("429", 429, StorageUnavailable),
        ("XAmzContentSHA256Mismatch", 400, StorageUnavailable),
        ("PreconditionFailed", 412, ObjectExists),
        ("412", 412, ObjectExists),
        ("NotImplemented", 501, ConditionUnsupported),
        ("NoSuchKey", 404, ObjectMissing),
        ("NoSuchUpload", 404, ObjectMissing),
        ("404", 404, ObjectMissing),
        ("NoSuchBucket", 404, StorageRefused),
        ("AccessDenied", 403, StorageRefused),
        ("ExpiredToken", 400, StorageRefused),
        ("RequestTimeTooSkewed", 403, StorageRefused),
        ("PermanentRedirect", 301, StorageRefused),
        ("QuotaExceeded", 403, StorageFull),
        ("InsufficientStorage", 507, StorageFull),
        ("MalformedXML", 400, StorageError),
    ],
)
def test_an_answer_of_the_store_is_repeated_only_if_it_may_pass(code: str, status: int, kind: type[Exception]) -> None:
    error = as_storage_error(ClientError(code, status), URL, "write state.pt")
    assert type(error) is kind
    assert "bucket" in str(error)


def test_a_translated_error_is_judged_by_its_cause() -> None:
    error = OSError(errno.EBUSY, "reduce your request rate")
    error.__cause__ = ClientError("SlowDown", 503)
    assert type(as_storage_error(error, URL, "read")) is StorageUnavailable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileExistsError(), ObjectExists),
        (FileNotFoundError(), ObjectMissing),
        (OSError(errno.ENOSPC, "full"), StorageFull),
        (ConnectionResetError(), StorageUnavailable),
        (TimeoutError(), StorageUnavailable),
        (type("NoCredentialsError", (Exception,), {})(), StorageRefused),
        (ValueError("of the client"), StorageError),
    ],
)
def test_an_error_without_an_answer_is_judged_by_its_type(error: Exception, kind: type[Exception]) -> None:
    assert type(as_storage_error(error, URL, "read")) is kind


def test_the_region_of_the_bucket_is_in_the_next_step() -> None:
    error = as_storage_error(
        ClientError("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-north-1"}), URL, "read"
    )
    assert "AWS_REGION to eu-north-1" in error.hint
