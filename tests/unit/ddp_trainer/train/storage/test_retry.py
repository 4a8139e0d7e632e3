"""Requests that fail for a reason that may pass are repeated, at random times, and not for ever."""

from __future__ import annotations

import pytest

from ddp_trainer.train.storage.retry import RetryPolicy
from ddp_trainer.train.utils.errors import ObjectMissing, StorageUnavailable


class Simulated:
    """Time that passes by sleeping only, and pauses that are as long as they may be."""

    def __init__(self) -> None:
        self.now, self.bounds = 0.0, list[float]()

    def policy(self, total_seconds: float) -> RetryPolicy:
        return RetryPolicy(total_seconds, 1.0, 4.0, lambda: self.now, self._sleep, self._draw)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _draw(self, least: float, most: float) -> float:
        assert least == 0.0
        self.bounds.append(most)
        return most


class Failing:
    """A request that fails some times before it succeeds."""

    def __init__(self, times: int, error: Exception) -> None:
        self.left, self.error, self.calls = times, error, 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.left:
            raise self.error
        return "done"


def test_each_pause_is_drawn_between_zero_and_a_bound_that_doubles_up_to_a_limit() -> None:
    time = Simulated()
    assert time.policy(100).call(Failing(5, StorageUnavailable("503."))) == "done"
    assert time.bounds == [1.0, 2.0, 4.0, 4.0, 4.0]


def test_a_request_is_given_up_once_its_time_has_passed() -> None:
    time, request = Simulated(), Failing(99, StorageUnavailable("503."))
    with pytest.raises(StorageUnavailable, match="503"):
        time.policy(6).call(request)
    assert (time.now, request.calls) == (3.0, 3)


def test_what_cannot_pass_is_not_repeated() -> None:
    request = Failing(1, ObjectMissing("no such object."))
    with pytest.raises(ObjectMissing):
        Simulated().policy(100).call(request)
    assert request.calls == 1
