"""Exchange of results between ranks through the store, which is not under test."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

LATE_SECONDS: Final = 0.05
"""Delay of the last rank before a barrier, in seconds. A barrier that releases ranks too early does so within it."""


class Exchange:
    """Access of one rank to the exchange."""

    def __init__(self, store: Any, rank: int, world: int) -> None:
        """Create the exchange.

        Args:
            store: torch's store.
            rank: This rank.
            world: Number of ranks.
        """
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

    def barrier(self, topic: str) -> None:
        """Block until all ranks have called it."""
        self._store.set(f"{topic}/here/{self.rank}", "")
        self._store.wait([f"{topic}/here/{rank}" for rank in range(self.world)])

    def enter(self, topic: str) -> None:
        """Count this rank before it enters a barrier. The last rank waits for all others, and a pause."""
        if self.rank == self.world - 1:
            self._store.wait([f"{topic}/at-the-door/{rank}" for rank in range(self.rank)])
            time.sleep(LATE_SECONDS)
        self._store.add(f"{topic}/entered", 1)
        self._store.set(f"{topic}/at-the-door/{self.rank}", "")

    def num_entered(self, topic: str) -> int:
        """Return the number of counted ranks."""
        return int(self._store.add(f"{topic}/entered", 0))
