"""What ranks tell each other about their results: through the store, which is not what is under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

LATE_SECONDS: Final = 0.05
"""A rank that a barrier lets through too early has left it by then."""


class Store(Protocol):
    """The part of torch's stores that is used."""

    def set(self, key: str, value: str) -> None:
        """Keep a value."""

    def get(self, key: str) -> bytes:
        """The value, when it is there."""

    def add(self, key: str, amount: int) -> int:
        """Count, and return what was counted so far."""

    def wait(self, keys: list[str]) -> None:
        """Return when all are there."""


class Exchange:
    """One rank's end."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        self._store = store
        self.rank = rank
        self.world = world

    def gather(self, topic: str, value: Any) -> Sequence[Any] | None:
        """The JSON values of all ranks, on rank 0; others go on at once, and get None."""
        self._store.set(f"{topic}/{self.rank}", json.dumps(value))
        if self.rank:
            return None
        return [json.loads(self._store.get(f"{topic}/{rank}")) for rank in range(self.world)]

    def publish(self, topic: str, value: Any = None) -> Any:
        """Rank 0's value, on every rank."""
        if self.rank == 0:
            self._store.set(topic, json.dumps(value))
            return value
        return json.loads(self._store.get(topic))

    def meet(self, topic: str) -> None:
        """Return when all ranks are here."""
        self._store.set(f"{topic}/here/{self.rank}", "")
        self._store.wait([f"{topic}/here/{rank}" for rank in range(self.world)])

    def enter(self, topic: str, pause: Callable[[float], object]) -> None:
        """Be counted among those about to enter a barrier; the last rank only when all others have long been."""
        if self.rank == self.world - 1:
            self._store.wait([f"{topic}/at-the-door/{rank}" for rank in range(self.rank)])
            pause(LATE_SECONDS)
        self._store.add(f"{topic}/entered", 1)
        self._store.set(f"{topic}/at-the-door/{self.rank}", "")

    def entered(self, topic: str) -> int:
        """How many were counted."""
        return self._store.add(f"{topic}/entered", 0)
