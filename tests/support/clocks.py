"""Clocks that tests turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock that returns :attr:`now`."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now
