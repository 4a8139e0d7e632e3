"""Replacement of a function of another module, with complete removal."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Patch:
    """Replacement of ``owner.name`` by a function that calls the original as :attr:`inner`."""

    __slots__ = ("_is_set", "_name", "_ours", "_owner", "inner")

    def __init__(self, owner: Any, name: str) -> None:
        self.inner: Callable[..., Any] = getattr(owner, name)
        self._owner = owner
        self._name = name
        self._ours: Callable[..., Any] = self.inner
        self._is_set = False

    def by(self, function: Callable[..., Any]) -> None:
        """Install ``function`` as the replacement."""
        self._ours = functools.wraps(self.inner)(function)
        self.set()

    def set(self) -> None:
        """Install the replacement, unless it is already in place or wrapped by what is in place."""
        if not self._is_set:
            self._is_set = True
            there = getattr(self._owner, self._name)
            if there is not self._ours:
                self.inner = there
                setattr(self._owner, self._name, self._ours)

    def unset(self) -> None:
        """Restore the original. If other code has wrapped the replacement, it stays below that wrapper."""
        if self._is_set and getattr(self._owner, self._name) is self._ours:
            self._is_set = False
            setattr(self._owner, self._name, self.inner)
