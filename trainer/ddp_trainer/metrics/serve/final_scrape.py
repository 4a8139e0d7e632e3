"""Whether it is worth waiting for Prometheus once more when a run is over, and for how long.

What a rank did since the last scrape is in nobody's history unless its pod is scraped after its end. A pod that stays
for that holds its GPUs, so it stays only where a Prometheus has come regularly, until it comes again, and not for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from ddp_trainer.common.constants import Env

MOST_SECONDS: Final = 20.0
SCRAPER: Final = "Prometheus/"
"""How Prometheus' user agent begins; who looks in by hand is not waited for."""
TIMES: Final = 2.0
"""Of the interval: by then it has come, or comes no more."""
SENT_SECONDS: Final = 0.5
"""An answer needs a moment to leave."""


class Scrapes:
    """When a Prometheus has asked."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._interval: float | None = None
        self._last: float | None = None
        self._over: float | None = None
        self._deadline = 0.0

    def asked(self, agent: str) -> None:
        """Somebody asks for the metrics."""
        if not agent.startswith(SCRAPER):
            return
        now = self._clock()
        if self._last is not None:
            self._interval = now - self._last
        self._last = now

    def over(self, most: float) -> None:
        """The run is over; Prometheus is waited for once more, for so many seconds at most."""
        self._over = self._clock()
        if self._interval is None or self._last is None:
            self._deadline = self._over
        else:
            self._deadline = min(self._over + most, self._last + TIMES * self._interval + SENT_SECONDS)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for: it has come since the run is over, or will not."""
        if self._over is None:
            return False
        now = self._clock()
        has_come = self._last is not None and self._last >= self._over and now - self._last >= SENT_SECONDS
        return has_come or now >= self._deadline


def most_seconds(environ: Mapping[str, str]) -> float:
    """``$DDP_LAST_SCRAPE``; 20 where it is not set, or no number of seconds from 0 to 600."""
    try:
        seconds = float(environ.get(Env.LAST_SCRAPE, ""))
    except ValueError:
        return MOST_SECONDS
    return seconds if 0 <= seconds <= 600 else MOST_SECONDS
