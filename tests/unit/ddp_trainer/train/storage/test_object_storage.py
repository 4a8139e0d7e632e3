"""Requests to an object store: retries, and the kind of each error."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from ddp_trainer.train.storage import object_storage
from ddp_trainer.train.storage.object_storage import ObjectStorage, as_storage_error
from ddp_trainer.train.utils import errors
from ddp_trainer.train.utils.locations import StorageUrl


class Simulated:
    """A store on a simulated clock, with the longest possible pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.bounds, self.calls = 0.0, list[float](), 0
        monkeypatch.setattr(object_storage, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))
        monkeypatch.setattr(object_storage, "random", SimpleNamespace(uniform=self._draw))
        self.storage = ObjectStorage(StorageUrl("s3://bucket/run"), lambda: None)

    def request(self, failures: int, error: Exception) -> str:
        """Send a request that fails some times before it succeeds."""

        def send() -> str:
            self.calls += 1
            if self.calls <= failures:
                raise error
            return "done"

        return self.storage.request(send, "read object")

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _draw(self, least: float, most: float) -> float:
        assert least == 0.0
        self.bounds.append(most)
        return most


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Simulated:
    return Simulated(monkeypatch)


def test_each_pause_is_drawn_between_zero_and_a_bound_that_doubles_up_to_a_limit(store: Simulated) -> None:
    assert store.request(9, TimeoutError("of the client")) == "done"
    assert store.bounds == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0])


def test_a_request_is_given_up_once_its_time_has_passed(store: Simulated) -> None:
    store.storage.repeat_seconds = 1.0
    with pytest.raises(errors.StorageUnavailable, match="503"):
        store.request(99, errors.StorageUnavailable("503."))
    assert (store.now, store.calls) == (pytest.approx(0.6), 3)


def test_what_cannot_pass_is_not_repeated(store: Simulated) -> None:
    with pytest.raises(errors.ObjectMissing):
        store.request(1, errors.ObjectMissing("no such object."))
    assert store.calls == 1


URL = StorageUrl("s3://bucket/run")


class ClientError(Exception):
    """An error like those of botocore."""

    def __init__(self, code: str, status: int, **headers: str) -> None:
        super().__init__(code)
        metadata = {"HTTPStatusCode": status, "HTTPHeaders": headers}
        self.response = {"Error": {"Code": code, "Message": "as the store wrote it"}, "ResponseMetadata": metadata}


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SlowDown", 503, errors.StorageUnavailable),
        ("ConditionalRequestConflict", 409, errors.StorageUnavailable),
        ("XAmzContentSHA256Mismatch", 400, errors.StorageUnavailable),
        ("PreconditionFailed", 412, errors.ObjectExists),
        ("NotImplemented", 501, errors.ConditionUnsupported),
        ("NoSuchKey", 404, errors.ObjectMissing),
        ("NoSuchBucket", 404, errors.StorageConfigError),
        ("AccessDenied", 403, errors.StorageConfigError),
        ("RequestTimeTooSkewed", 403, errors.StorageConfigError),
        ("PermanentRedirect", 301, errors.StorageConfigError),
        ("QuotaExceeded", 403, errors.StorageFull),
        ("InsufficientStorage", 507, errors.StorageFull),
        ("MalformedXML", 400, errors.StorageError),
    ],
)
def test_an_answer_of_the_store_is_repeated_only_if_it_may_pass(code: str, status: int, kind: type[Exception]) -> None:
    error = as_storage_error(ClientError(code, status), URL, "write state.pt")
    assert type(error) is kind
    assert "bucket" in str(error)


def test_a_translated_error_is_judged_by_its_cause() -> None:
    error = OSError(errno.EBUSY, "reduce your request rate")
    error.__cause__ = ClientError("SlowDown", 503)
    assert type(as_storage_error(error, URL, "read")) is errors.StorageUnavailable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileExistsError(), errors.ObjectExists),
        (FileNotFoundError(), errors.ObjectMissing),
        (OSError(errno.ENOSPC, "full"), errors.StorageFull),
        (ConnectionResetError(), errors.StorageUnavailable),
        (type("NoCredentialsError", (Exception,), {})(), errors.StorageConfigError),
        (ValueError("of the client"), errors.StorageError),
    ],
)
def test_an_error_without_an_answer_is_judged_by_its_type(error: Exception, kind: type[Exception]) -> None:
    assert type(as_storage_error(error, URL, "read")) is kind


def test_the_region_of_the_bucket_is_in_the_next_step() -> None:
    redirect = ClientError("PermanentRedirect", 301, **{"x-amz-bucket-region": "eu-north-1"})
    assert "AWS_REGION to eu-north-1" in as_storage_error(redirect, URL, "read").hint
