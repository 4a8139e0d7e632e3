"""Wait for one last scrape at the end of a run.

Without a scrape after its end, Prometheus misses the progress of a pod since the previous scrape. A waiting pod holds
its GPUs. :class:`ScrapeTracker` therefore waits only if Prometheus has scraped regularly, only until its next scrape,
and only for a limited time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ddp_trainer.common.constants import Env

MOST_SECONDS: Final = 20.0
SCRAPER: Final = "Prometheus/"
"""Prefix of Prometheus' user agent. Requests of other clients do not count."""
TIMES: Final = 2.0
"""Longest time after the last scrape, in scrape intervals. After it, no further scrape is expected."""
SENT_SECONDS: Final = 0.5
"""Seconds for a response to leave."""


class ScrapeTracker:
    """Times of Prometheus' scrapes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval: float | None = None
        self._last: float | None = None
        self._over: float | None = None
        self._deadline = 0.0

    def asked(self, agent: str) -> None:
        """Record a request for the metrics.

        Args:
            agent: User agent of the client.
        """
        if not agent.startswith(SCRAPER):
            return
        now = self._clock()
        if self._last is not None:
            self._interval = now - self._last
        self._last = now

    def over(self, most: float) -> None:
        """Record the end of the run, and wait for one more scrape for at most ``most`` seconds."""
        self._over = self._clock()
        if self._interval is None or self._last is None:
            self._deadline = self._over
        else:
            self._deadline = min(self._over + most, self._last + TIMES * self._interval + SENT_SECONDS)

    @property
    def is_done(self) -> bool:
        """True if the run is over and there is nothing to wait for: the last scrape came, or it is overdue."""
        if self._over is None:
            return False
        now = self._clock()
        has_come = self._last is not None and self._last >= self._over and now - self._last >= SENT_SECONDS
        return has_come or now >= self._deadline


def max_wait_seconds(environ: Mapping[str, str]) -> float:
    """Return the seconds in ``$DDP_LAST_SCRAPE``; 20 if it is unset or not a number from 0 to 600."""
    try:
        seconds = float(environ.get(Env.LAST_SCRAPE, ""))
    except ValueError:
        return MOST_SECONDS
    return seconds if 0 <= seconds <= 600 else MOST_SECONDS
