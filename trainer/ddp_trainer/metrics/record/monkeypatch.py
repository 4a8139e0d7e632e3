"""A function of ours in the place of another's, which goes again without a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patch:
    """In place of ``owner.name``: ``function``, which calls :attr:`inner` where it would have called that."""

    __slots__ = ("_is_set", "_name", "_ours", "_owner", "inner")

    def __init__(self, owner: Any, name: str) -> None:
        self.inner: Callable[..., Any] = getattr(owner, name)
        self._owner = owner
        self._name = name
        self._ours: Callable[..., Any] = self.inner
        self._is_set = False

    def by(self, function: Callable[..., Any]) -> None:
        """From now on ``function`` is called."""
        self._ours = functools.wraps(self.inner)(function)
        self.set()

    def set(self) -> None:
        """Put ours in its place, unless it is there, or part of what is there."""
        if not self._is_set:
            self._is_set = True
            there = getattr(self._owner, self._name)
            if there is not self._ours:
                self.inner = there
                setattr(self._owner, self._name, self._ours)

    def unset(self) -> None:
        """Put back what was there; where somebody else has put something over ours, it stays below that."""
        if self._is_set and getattr(self._owner, self._name) is self._ours:
            self._is_set = False
            setattr(self._owner, self._name, self.inner)
