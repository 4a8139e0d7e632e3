"""Exchange of results between ranks through the store, which is not under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

LATE_SECONDS: Final = 0.05
"""Delay of the last rank before a barrier, in seconds. A barrier that releases ranks too early does so within it."""


class Store(Protocol):
    """Methods of torch's stores that are used."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""

    def get(self, key: str) -> bytes:
        """Return the value, once it is set."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, and return its new value."""

    def wait(self, keys: list[str]) -> None:
        """Block until all keys are set."""


class Exchange:
    """Access of one rank to the exchange."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store = store
        self.rank = rank
        self.world = world

    def gather(self, topic: str, value: Any) -> Sequence[Any] | None:
        """Return the JSON values of all ranks on rank 0. Other ranks return None without waiting."""
        self._store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank:
            return None
        return [json.loads(self._store.get(f"{topic}/{rank}")) for rank in range(self.world)]

    def publish(self, topic: str, value: Any = None) -> Any:
        """Return rank 0's value on every rank."""
        if self.rank == 0:
            self._store.set(topic, json.dumps(value))
            return value
        return json.loads(self._store.get(topic))

    def meet(self, topic: str) -> None:
        """Block until all ranks have called it."""
        self._store.set(f"{topic}/here/{self.rank}", "")
        self._store.wait([f"{topic}/here/{rank}" for rank in range(self.world)])

    def enter(self, topic: str, pause: Callable[[float], object]) -> None:
        """Count this rank before it enters a barrier. The last rank waits for all others, and a pause."""
        if self.rank == self.world - 1:
            self._store.wait([f"{topic}/at-the-door/{rank}" for rank in range(self.rank)])
            pause(LATE_SECONDS)
        self._store.add(f"{topic}/entered", 1)
        self._store.set(f"{topic}/at-the-door/{self.rank}", "")

    def entered(self, topic: str) -> int:
        """Return the number of counted ranks."""
        return self._store.add(f"{topic}/entered", 0)
