"""Messages about skipped samples, limited in number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST_TOLD: Final = 20


class Skips:
    """Reports each reason for a skipped sample once, and at most :data:`MOST_TOLD` reasons.

    One more message then states that further samples are only counted.
    """

    def __init__(self, alarm: Callable[[str], None]) -> None:
        self._alarm = alarm
        self._told: set[str] = set()

    def __call__(self, sentence: str) -> None:
        """Report a skipped sample with the reason ``sentence``."""
        if sentence in self._told or len(self._told) > MOST_TOLD:
            return
        self._told.add(sentence)
        if len(self._told) > MOST_TOLD:
            self._alarm("More samples cannot be read; the summary counts them as samples_skipped.")
        else:
            self._alarm(f"{sentence} It counts as seen, with weight 0.")
