"""Telling of samples that are skipped: each by name, and no more often than a log can bear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST_TOLD: Final = 20


class Skips:
    """Says once why a sample is left out; after :data:`MOST_TOLD` of them, that more are only counted."""

    def __init__(self, alarm: Callable[[str], None]) -> None:
        self._alarm = alarm
        self._told: set[str] = set()

    def __call__(self, sentence: str) -> None:
        """A sample was left out."""
        if sentence in self._told or len(self._told) > MOST_TOLD:
            return
        self._told.add(sentence)
        if len(self._told) > MOST_TOLD:
            self._alarm("More samples cannot be read; the summary counts them as samples_skipped.")
        else:
            self._alarm(f"{sentence} It counts as seen, with weight 0.")
