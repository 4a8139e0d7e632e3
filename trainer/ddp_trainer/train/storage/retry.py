"""Repeat requests to an object store that failed for a reason that may pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ddp_trainer.train.utils.errors import StorageUnavailable

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter: each pause is random, between zero and a bound that doubles.

    Source: M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
    """

    total_seconds: float = 120.0
    """Time after the first failure in which a request is repeated."""
    first_seconds: float = 0.2
    """Bound of the first pause."""
    longest_seconds: float = 20.0
    """Greatest bound of a pause."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[float, float], float] = random.uniform

    def call(self, request: Callable[[], Result]) -> Result:
        """Return the result of a request, which is repeated while it raises ``StorageUnavailable``.

        Raises:
            StorageUnavailable: The last failure, after the time has passed.
            StorageError: Any other failure, at once.
        """
        until: float | None = None
        bound = self.first_seconds
        while True:
            try:
                return request()
            except StorageUnavailable:
                now = self.clock()
                until = now + self.total_seconds if until is None else until
                pause = self.draw(0.0, min(bound, self.longest_seconds))
                if now + pause > until:
                    raise
            self.sleep(pause)
            bound *= 2
