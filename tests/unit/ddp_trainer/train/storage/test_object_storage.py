"""Requests that fail for a reason that may pass are repeated, at random times, and not for ever."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ddp_trainer.train.storage import object_storage
from ddp_trainer.train.storage.object_storage import ObjectStorage
from ddp_trainer.train.utils.errors import ObjectMissing, StorageUnavailable
from ddp_trainer.train.utils.locations import StorageUrl


class Simulated:
    """A store, time that passes by sleeping only, and pauses that are as long as they may be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.bounds, self.calls = 0.0, list[float](), 0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(object_storage, "time", clock)
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
    with pytest.raises(StorageUnavailable, match="503"):
        store.request(99, StorageUnavailable("503."))
    assert (store.now, store.calls) == (pytest.approx(0.6), 3)


def test_what_cannot_pass_is_not_repeated(store: Simulated) -> None:
    with pytest.raises(ObjectMissing):
        store.request(1, ObjectMissing("no such object."))
    assert store.calls == 1
